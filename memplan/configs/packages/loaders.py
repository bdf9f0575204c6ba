"""How packages load whole configs, inheritance and all; each runs in a child process, where the package is imported."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.configs.documents import read_source
from memplan.configs.evaluation.hydra_defaults import choices_and_overlays, has_defaults, override_words
from memplan.configs.evaluation.plain_data import as_plain
from memplan.configs.packages.messages import PackageAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.configs.packages.messages import PackageRequest


def loaded_by_package(request: PackageRequest) -> PackageAnswer:
    """Load a text as if it were at a path; no file is left behind."""
    path = Path(request.path)
    handle, temporary = tempfile.mkstemp(prefix=f"{path.stem}_", suffix=path.suffix, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(request.text.encode())
        loaded, distribution = LOADERS[request.package]((*map(Path, request.over), Path(temporary)))
        values = as_plain(loaded, where=request.path)
    finally:
        Path(temporary).unlink()
    return PackageAnswer(values=values, loader=f"{distribution} {importlib.metadata.version(distribution)}")


def _load_with_mmengine(files: tuple[Path, ...]) -> tuple[Any, str]:
    config = importlib.import_module("mmengine.config").Config
    return config.fromfile(str(files[-1]), import_custom_modules=False).to_dict(), "mmengine"


def _load_with_omegaconf(files: tuple[Path, ...]) -> tuple[Any, str]:
    """Load a single file with OmegaConf; a defaults list, or an experiment on top of one, is composed by Hydra."""
    omegaconf = importlib.import_module("omegaconf").OmegaConf
    primary, *experiment = files
    loaded = omegaconf.to_container(omegaconf.load(primary), resolve=False)
    if not has_defaults(loaded):
        return loaded, "omegaconf"
    hydra = importlib.import_module("hydra")
    chosen, over = choices_and_overlays(primary.parent, [read_source(each) for each in experiment])
    overrides = override_words(loaded, chosen, overlay=over[-1].path.stem if over else None).split()
    with hydra.initialize_config_dir(config_dir=str(primary.parent.resolve()), version_base=None):
        composed = hydra.compose(config_name=primary.stem, overrides=overrides)
    return omegaconf.to_container(composed, resolve=False), "hydra-core"


# Package as it is imported -> what has it load files that are laid over one another, and says its distribution.
LOADERS: dict[str, Callable[[tuple[Path, ...]], tuple[Any, str]]] = {
    "mmengine": _load_with_mmengine,
    "omegaconf": _load_with_omegaconf,
}
