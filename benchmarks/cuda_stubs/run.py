"""Run a command on PyTorch's own CUDA code where there is no card, with stubs in the place of CUDA's libraries.

    python benchmarks/cuda_stubs/run.py [--card a100-80gb] benchmarks/truth.py --out DIR
    python benchmarks/cuda_stubs/run.py -m pytest tests/gpu -p no:cacheprovider

Which blocks PyTorch asks its caching allocator for, in which order, and what the allocator makes of it follows from
the host's code, the card's properties and cuDNN's heuristics. None of this needs a card, and no kernel runs here. So
allocated and reserved bytes are PyTorch's own, but there is no time, and no value that a kernel would compute: losses
and all that depends on values are arbitrary, but for those that ``values.py`` tells to ``truth.py``. The context is
memplan's own estimate, cuBLASLt and batch normalisation take no workspace, and recurrent layers and CTC end with an
error. Of the card its size, capability, multiprocessors, shared memory and second cache are told; the rest is an
A100's. Nothing that this prints was measured on a card.

Needs Linux on x86-64, gcc, binutils, a build of PyTorch for CUDA 12 or 13 with NVIDIA's libraries from pip, and the
headers of CUDA's compiler (``--include``, where they are not in /usr/local/cuda/include). PyTorch 2.10, for CUDA 12,
2.11, 2.13 and 2.15 were tried.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from memplan.devices.card_context import context_bytes, threads_per_multiprocessor
from memplan.devices.cards import DeviceSpec, find_card
from memplan.estimators.cudnn.asking import library_folders
from memplan.estimators.cudnn.heuristics import device_description
from memplan.estimators.lowering.inductor_card import inductor_card
from memplan.units import KIB

HERE = Path(__file__).parent
BUILT = HERE / "build"
_DEFINED = re.compile(r"^(?:[a-z][\w ]*\**\s?\**)?\b(_*(?:cu|nvml)\w+)\(", re.MULTILINE)
_MADE_BY_MACRO = re.compile(r"^(?:MAKES_NOTHING|CANNOT_BE_SIZED)\((\w+)\)", re.MULTILINE)

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": shared memory of a multiprocessor.
# What is not listed has that of an A100.
_SHARED_KIB = {(7, 0): 96, (7, 5): 64, (8, 6): 100, (8, 9): 100, (9, 0): 228, (10, 0): 228, (12, 0): 100}
_USUAL_SHARED_KIB = 164


@dataclass(frozen=True, slots=True, kw_only=True)
class Stub:
    """One library to stand in for.

    Args:
        source: its file here, without extension.
        library: its name, which is also the version of its symbols.
        also: NVIDIA's own library, all of whose functions other libraries may look up.
    """

    source: str
    library: str
    also: str | None = None


def stubs_for(cuda: str) -> tuple[Stub, ...]:
    """Return the stubs of a major version of CUDA."""
    return (
        Stub(source="cuda", library="libcuda.so.1"),
        Stub(source="nvml", library="libnvidia-ml.so.1"),
        Stub(source="cudart", library=f"libcudart.so.{cuda}"),
        Stub(source="cublaslt", library=f"libcublasLt.so.{cuda}", also=f"libcublasLt.so.{cuda}"),
        Stub(source="cublas", library=f"libcublas.so.{cuda}", also=f"libcublas.so.{cuda}"),
        Stub(source="cudnn", library="libcudnn.so.9"),
    )


def main() -> None:
    """Build the stubs, and become the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--card", default="a100-80gb", help="whose properties the stubs report")
    parser.add_argument("--include", type=Path, default=Path("/usr/local/cuda/include"), help="headers of the compiler")
    options, command = parser.parse_known_args()  # all else is for this Python
    folders = library_folders()
    if find_spec("torch") is None or not folders:
        raise SystemExit("this Python has no CUDA build of PyTorch with NVIDIA's libraries from pip")
    if not (options.include / "cuda.h").exists():
        raise SystemExit(f"{options.include} has no cuda.h: name the headers of CUDA's compiler with --include")
    # Of two libraries of a name, the one that Python would find is kept.
    libraries = {path.name: path for folder in reversed(folders) for path in folder.glob("lib*.so*")}
    includes = [*(folder.with_name("include") for folder in folders), options.include]
    declared, linked = declared_by_driver(options.include), linked_by_torch()
    BUILT.mkdir(exist_ok=True)
    stubs = stubs_for(next(name for name in libraries if name.startswith("libcudart.so.")).rpartition(".")[2])
    for stub in stubs:
        wanted = declared if stub.source == "cuda" else linked.get(stub.library, set())
        build(stub, wanted | (exported(libraries[stub.also]) if stub.also else set()), includes)
    card = described(find_card(options.card), libraries["libcudnn.so.9"])
    environment = {**os.environ, **card, "LD_PRELOAD": " ".join(str(BUILT / stub.library) for stub in stubs)}
    os.execve(sys.executable, [sys.executable, *command], environment)  # noqa: S606 - the user's command


def described(card: DeviceSpec, cudnn: Path) -> dict[str, str]:
    """Return the environment that has the stubs report a card."""
    if card.compute_capability is None or card.sm_count is None or card.total_bytes is None:
        raise SystemExit(f"of {card.name} only the size is known")
    major, minor = card.compute_capability
    of_multiprocessor, of_block = shared_bytes(card.compute_capability)
    threads = threads_per_multiprocessor(card.compute_capability)
    device = {
        **json.loads(device_description(card.compute_capability)),
        "multiProcessorCount": card.sm_count,
        "maxThreadsPerSM": threads,
        "maxSharedMemoryPerBlockOptin": of_block,
        "totalGlobalMem": card.total_bytes,
    }
    return {
        "TRITON_LIBCUDA_PATH": str(BUILT),
        "STUB_NAME": f"stubs for {card.name}",
        "STUB_TOTAL_BYTES": str(card.total_bytes),
        "STUB_CONTEXT_BYTES": str(context_bytes(card.compute_capability, card.sm_count)),
        "STUB_CAPABILITY": str(10 * major + minor),
        "STUB_MULTIPROCESSORS": str(card.sm_count),
        "STUB_THREADS_PER_MULTIPROCESSOR": str(threads),
        "STUB_SHARED_BYTES_OF_MULTIPROCESSOR": str(of_multiprocessor),
        "STUB_SHARED_BYTES_OF_BLOCK": str(of_block),
        "STUB_CACHE_BYTES": str(inductor_card(card.compute_capability, card.sm_count).cache_bytes),
        "STUB_FOLDER": tempfile.mkdtemp(prefix="cuda-stubs-"),
        "STUB_CUDNN": str(cudnn),
        "STUB_CUDNN_DEVICE": json.dumps(device),
    }


def shared_bytes(compute_capability: tuple[int, int]) -> tuple[int, int]:
    """Return the shared memory of a multiprocessor, and the most of it that one block may have."""
    of_multiprocessor = _SHARED_KIB.get(compute_capability, _USUAL_SHARED_KIB) * KIB
    return of_multiprocessor, of_multiprocessor - (KIB if compute_capability >= (8, 0) else 0)


def build(stub: Stub, wanted: set[str], includes: list[Path]) -> None:
    """Compile a stub; of the functions that are wanted, those that its source does not define return success."""
    source = HERE / f"{stub.source}.c"
    text = source.read_text()
    defined = {*_DEFINED.findall(text), *_MADE_BY_MACRO.findall(text)}
    aliases = (f'asm(".globl {name}\\n.set {name}, succeeds\\n");' for name in sorted(wanted - defined))
    (BUILT / f"rest_{stub.source}.h").write_text(
        "\n".join(("__attribute__((used)) int succeeds(void) { return 0; }", *aliases, ""))
    )
    versions = BUILT / f"{stub.source}.map"
    versions.write_text(f"{stub.library} {{ global: *; }};\n")
    folders = [f"-I{folder}" for folder in (BUILT, HERE, *includes)]
    named = [f"-Wl,-soname,{stub.library}"]
    versioned = [f"-Wl,--version-script={versions}"] if stub.source not in ("cuda", "nvml") else []
    output = ["-o", str(BUILT / stub.library), str(source), "-lpthread", "-ldl"]
    run(["gcc", "-O1", "-w", "-D_GNU_SOURCE", "-shared", "-fPIC", *folders, *named, *versioned, *output])


def declared_by_driver(include: Path) -> set[str]:
    """Return the functions that the driver's header declares."""
    names = set(re.findall(r"CUDAAPI\s+(cu\w+)\s*\(", (include / "cuda.h").read_text()))
    return names | {f"{name}_v2" for name in names}


def linked_by_torch() -> dict[str, set[str]]:
    """Return the functions that PyTorch links to, by library."""
    torch = Path(find_spec("torch").origin).parent / "lib"
    linked: dict[str, set[str]] = {}
    for path in torch.glob("*.so"):
        for line in run(["nm", "-D", "--undefined-only", str(path)]).splitlines():
            name, _, library = line.split()[-1].partition("@")
            linked.setdefault(library.strip("@"), set()).add(name)
    return linked


def exported(library: Path) -> set[str]:
    """Return the functions that a library defines."""
    lines = run(["nm", "-D", "--defined-only", str(library)]).splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines if " T " in line}


def run(command: list[str]) -> str:
    """Run a tool and return what it prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
