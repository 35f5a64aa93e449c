"""The manifests of docs/kubernetes: what Kubernetes itself has, against its schemas; the MPIJob and
the JobSet, which are no part of it, by their pods and by the names that stand here."""

from typing import Any

import pytest
from conftest import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")

FOLDER = ROOT / "docs/kubernetes"
VERSION = "1.29"
RINGRUN, SECRET = "ringrun", "/run/ringreduce/secret"


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def validate(document: Any) -> None:
    schemas.validate(document, VERSION, strict=True)


def as_job(spec: Any) -> Any:
    """A Job of this specification."""
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec}


def has_the_secret(pod: Any) -> None:
    """The secret is a file, and not a link; its owner alone reads it."""
    (container,) = pod["containers"]
    (mount,) = container["volumeMounts"]
    (volume,) = pod["volumes"]
    environment = {it["name"]: it.get("value") for it in container["env"]}
    assert environment["RINGREDUCE_SECRET_FILE"] == mount["mountPath"] == SECRET
    assert mount["subPath"] == "secret" and mount["name"] == volume["name"]
    assert volume["secret"]["defaultMode"] == 0o400


def test_all_manifests_are_looked_at() -> None:
    names = {"mpijob.yaml", "jobset.yaml", "indexed-job.yaml"}
    assert {path.name for path in FOLDER.iterdir()} == names


def test_pods_of_an_indexed_job_are_ranks() -> None:
    service, job = documents("indexed-job.yaml")
    for document in (service, job):
        validate(document)
    pod = job["spec"]["template"]["spec"]
    has_the_secret(pod)
    environment = {it["name"]: it for it in pod["containers"][0]["env"]}
    assert environment["RINGREDUCE_SIZE"]["value"] == str(job["spec"]["completions"])
    assert job["spec"]["parallelism"] == job["spec"]["completions"]
    # The name of a pod is that of the job with the index, in the domain of the service.
    name = service["metadata"]["name"]
    assert pod["subdomain"] == name and service["spec"]["clusterIP"] == "None"
    assert environment["RINGREDUCE_STORE"]["value"] == f"{job['metadata']['name']}-0.{name}:7000"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}


def test_each_pod_of_a_jobset_has_a_ringrun() -> None:
    (jobset,) = documents("jobset.yaml")
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert set(jobset) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(jobset["spec"]) == {"network", "replicatedJobs"}
    assert jobset["spec"]["network"] == {
        "enableDNSHostnames": True,
        "publishNotReadyAddresses": True,
    }
    (nodes,) = jobset["spec"]["replicatedJobs"]
    assert set(nodes) == {"name", "replicas", "template"}
    job = nodes["template"]["spec"]
    validate(as_job(job))
    has_the_secret(job["template"]["spec"])
    program, *words = job["template"]["spec"]["containers"][0]["command"]
    name = jobset["metadata"]["name"]
    assert program == RINGRUN
    assert f"--nnodes={job['completions']}" in words
    assert "--node-rank=$(JOB_COMPLETION_INDEX)" in words
    # JobSet's pods: its name, the job's, the numbers of job and pod, in a domain of its name.
    assert f"--rdzv-endpoint={name}-{nodes['name']}-0-0.{name}:7000" in words


def test_ringrun_is_the_mpirun_of_an_mpijob() -> None:
    (mpijob,) = documents("mpijob.yaml")
    assert (mpijob["apiVersion"], mpijob["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    spec = mpijob["spec"]
    assert set(spec) == {
        "slotsPerWorker",
        "launcherCreationPolicy",
        "runPolicy",
        "mpiReplicaSpecs",
    }
    assert spec["launcherCreationPolicy"] in ("AtStartup", "WaitForWorkersReady")
    assert spec["runPolicy"]["cleanPodPolicy"] in ("None", "Running", "All")
    assert set(spec["mpiReplicaSpecs"]) == {"Launcher", "Worker"}
    for replicas in spec["mpiReplicaSpecs"].values():
        assert set(replicas) == {"replicas", "template"}
        pod = {"restartPolicy": "Never", **replicas["template"]["spec"]}
        validate(as_job({"template": {"spec": pod}}))
    launcher = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    program, option, shell, _ = launcher["command"]
    assert (program, option) == (RINGRUN, "--rsh") and shell.startswith("ssh -o ")
