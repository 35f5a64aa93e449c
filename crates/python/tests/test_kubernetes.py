"""The manifests of docs/kubernetes, against the schemas of Kubernetes and, where .ci/full has
downloaded them, the CRDs (custom resource definitions) of JobSet and of the MPI operator."""

from typing import Any

import pytest
from conftest import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

FOLDER = ROOT / "docs/kubernetes"
CRDS = ROOT / "target/crds"
VERSION = "1.29"
RINGRUN, SECRET = "ringrun", "/run/ringreduce/secret"


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def validate(document: Any) -> None:
    schemas.validate(document, VERSION, strict=True)


def as_job(spec: Any) -> Any:
    """A Job of this specification."""
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec}


def without_unknown_fields(schema: Any) -> Any:
    """A CRD's schema as JSON Schema that refuses unknown fields, as `kubectl apply` does."""
    if isinstance(schema, list):
        return [without_unknown_fields(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: without_unknown_fields(part) for name, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def faults(document: Any, crd: Any) -> list[str]:
    """What the CRD refuses in a document. It leaves the names in `metadata` to Kubernetes."""
    version = document["apiVersion"].partition("/")[2]
    (schema,) = [
        known["schema"]["openAPIV3Schema"]
        for known in crd["spec"]["versions"]
        if known["name"] == version and known["served"]
    ]
    schema = without_unknown_fields(schema)
    assert schema["properties"]["metadata"] == {"type": "object"}
    errors = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in errors]


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
    assert {path.name for path in FOLDER.glob("*.yaml")} == names


@pytest.mark.parametrize(
    ("name", "crd", "container"),
    [
        (
            "jobset.yaml",
            "jobset.x-k8s.io_jobsets.yaml",
            ("replicatedJobs", 0, "template", "spec", "template", "spec", "containers", 0),
        ),
        (
            "mpijob.yaml",
            "kubeflow.org_mpijobs.yaml",
            ("mpiReplicaSpecs", "Worker", "template", "spec", "containers", 0),
        ),
    ],
)
def test_custom_resources_are_as_their_crds_say(name: str, crd: str, container: Any) -> None:
    if not (CRDS / crd).exists():
        pytest.skip(f"target/crds/{crd} is not there; .ci/full downloads it")
    definition = yaml.safe_load((CRDS / crd).read_text())
    (document,) = documents(name)
    assert faults(document, definition) == []
    # The check sees a field of a wrong name, however deep it is.
    part = document["spec"]
    for step in container:
        part = part[step]
    part["imagePullPolice"] = "Always"
    (fault,) = faults(document, definition)
    assert "imagePullPolice" in fault


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
