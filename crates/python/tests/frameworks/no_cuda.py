"""Lets PyTorch's wheel for CUDA be imported on a machine without CUDA's libraries, for tests.

python no_cuda.py SITE_PACKAGES

Makes a library for each that is missing, with the names that PyTorch's own libraries look up. Their
functions say that there is no device. Needs gcc, nm and readelf.
"""

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

#: Whose names begin how, for names without a version.
FAMILIES = {
    "libnccl": r"p?nccl",
    "libnvshmem": "nvshmem",
    "libcudnn": "cudnn",
    "libcublasLt": "cublasLt",
    "libcublas.": "cublas",
    "libcusparseLt": "cusparseLt",
    "libcusparse.": "cusparse",
    "libcufft": "cufft",
    "libcufile": "cuFile",
    "libcupti": "cupti",
    "libcusolver": "cusolver",
    "libnvrtc": "nvrtc",
    "libcudart": "(__)?cuda[A-Z]",
}

#: No device: cudaErrorNoDevice.
ANSWER = "int {0}(void) { return 100; }"
#: Functions that other code calls while it is loaded, or whose answer is a text.
ANSWERS = {
    r"(cuda|nccl)Get(ErrorString|LastErrorString|ErrorName)|ncclGetLastError": (
        'const char *{0}(void) { return "no CUDA"; }'
    ),
    "cuda(GetLastError|PeekAtLastError)": "int {0}(void) { return 0; }",
    "cudaGetDeviceCount": "int {0}(int *n) { if (n) *n = 0; return 100; }",
    "__cudaRegisterFatBinary": "static void *h[8]; void **{0}(void) { return h; }",
    "__cuda.*": "void {0}(void) {}",
}


def output(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def looked_up(library: Path) -> set[tuple[str, str]]:
    """The names with their versions that a library does not have itself."""
    lines = [line.split() for line in output("nm", "-D", str(library)).splitlines()]
    names = [words[-1].partition("@") for words in lines if words[-2] == "U"]
    return {(name, version.lstrip("@")) for name, _, version in names}


def versions(library: Path) -> dict[str, str]:
    """The library that each version is of."""
    found, file = {}, ""
    for line in output("readelf", "-VW", str(library)).splitlines():
        if match := re.search(r"File: (\S+)", line):
            file = match[1]
        elif match := re.search(r"Name: (\S+)\s+Flags.*Version:", line):
            found[match[1]] = file
    return found


def code(name: str) -> str:
    """A function of this name."""
    for pattern, answer in ANSWERS.items():
        if re.fullmatch(pattern, name):
            return answer.replace("{0}", name)
    return ANSWER.replace("{0}", name)


def make(path: Path, names: dict[str, set[str]]) -> None:
    """Makes one library."""
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "stub.c"), Path(folder, "stub.map")
        source.write_text("\n".join(code(it) for of in names.values() for it in sorted(of)) + "\n")
        script.write_text(
            "\n".join(
                f"{version} {{ global: {'; '.join(sorted(of))}; }};"
                for version, of in names.items()
                if version and of
            )
        )
        command = ["gcc", "-w", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{path.name}"]
        if script.stat().st_size:
            command.append(f"-Wl,--version-script,{script}")
        subprocess.run([*command, "-o", str(path), str(source)], check=True)


def main(site: Path) -> None:
    """Makes what is missing."""
    folder = site / "torch" / "lib"
    libraries = [*folder.glob("*.so"), *(site / "torch").glob("_C*.so")]
    needed = {
        name
        for library in libraries
        for name in re.findall(r"NEEDED.*\[(.*?)\]", output("readelf", "-dW", str(library)))
        if re.match(r"lib(cu|nv|nccl)", name) and name != "libcuda.so.1"
    }
    missing = {name for name in needed if not (folder / name).exists()}
    names: dict[str, dict[str, set[str]]] = {it: defaultdict(set) for it in sorted(missing)}
    for library in libraries:
        owners = versions(library)
        for name, version in looked_up(library):
            owner = owners.get(version)
            if not version:
                families = (begin for begin, of in FAMILIES.items() if re.match(of, name))
                family = next(families, None)
                owner = next((it for it in missing if family and it.startswith(family)), None)
            if owner is not None and owner in missing:
                names[owner][version].add(name)
    for library_name, of_version in names.items():
        make(folder / library_name, of_version)
        print(f"no_cuda: {library_name}: {sum(map(len, of_version.values()))} names")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
