"""What all tests share: precision, keys, and which slow tests run."""

from __future__ import annotations

import atexit
import os
import resource
import shutil
import subprocess
import tempfile

# What one worker has compiled, the other need not; for this run only.
if "PYTEST_XDIST_WORKER" not in os.environ and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    compiled = tempfile.mkdtemp(prefix="bayeslearn-tests-")
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = compiled
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"

import jax
import pytest

SLOW_PARTS = 10
SLOW = pytest.StashKey[list[tuple[str, str]]]()  # (test, reason) of all that were collected
KEPT_KILOBYTES = 3_000_000


def pytest_addoption(parser):
    parser.addoption(
        "--slow",
        choices=("none", "part", "all"),
        default="part",
        help="which slow tests run: a tenth of them (part, the default), none or all",
    )


def _part() -> int:
    """Which tenth of the slow tests runs: BAYESLEARN_SLOW_PART, else by the commit's hash."""
    if "BAYESLEARN_SLOW_PART" in os.environ:
        return int(os.environ["BAYESLEARN_SLOW_PART"]) % SLOW_PARTS
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return int(commit.stdout.strip() or "0", 16) % SLOW_PARTS


def pytest_report_header(config):
    if config.getoption("--slow") == "part":
        return f"slow tests: part {_part()} of {SLOW_PARTS} (BAYESLEARN_SLOW_PART={_part()})"
    return f"slow tests: {config.getoption('--slow')}"


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config, items):
    _group_for_workers(items)
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.stash[SLOW] = [
        (item.nodeid, item.get_closest_marker("slow").kwargs.get("reason", "")) for item in slow
    ]
    wanted = config.getoption("--slow")
    if wanted == "all":
        return
    chosen = slow[_part() :: SLOW_PARTS] if wanted == "part" else []
    gone = {id(item) for item in slow} - {id(item) for item in chosen}
    if gone:
        config.hook.pytest_deselected(items=[item for item in items if id(item) in gone])
        items[:] = [item for item in items if id(item) not in gone]


def _group_for_workers(items):
    """Tests that share compiled functions or fixtures run in one worker: a file (or a class of
    estimators), or, where every test is of every algorithm, an algorithm."""
    for item in items:
        name = getattr(item, "callspec", None) and item.callspec.params.get("name")
        is_common = item.path.name == "test_contract.py" and name
        kind = getattr(item, "callspec", None) and item.callspec.params.get("cls")
        group = f"algorithm {name}" if is_common else f"{item.path} {kind and kind.__name__}"
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(autouse=True, scope="module")
def memory():
    """Compiled functions are kept for ever: let go of them between files once they are many."""
    yield
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > KEPT_KILOBYTES:
        jax.clear_caches()


@pytest.fixture
def slow_tests(request):
    """(test, reason) of all slow tests that were collected, whether they run or not."""
    return request.config.stash[SLOW]


@pytest.fixture
def x64():
    """64-bit types allowed, as inside `fit`."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def key():
    """A fixed key; BAYESLEARN_SEED changes it."""
    return jax.random.key(int(os.environ.get("BAYESLEARN_SEED", "0")))


@pytest.fixture
def compiles():
    """`with compiles() as seen:` lists what XLA compiled inside the block."""
    import contextlib

    from jax import monitoring

    @contextlib.contextmanager
    def watch():
        seen = []

        def listen(event, duration, **details):
            if event == "/jax/core/compile/backend_compile_duration":
                seen.append(details.get("fun_name", "?"))

        monitoring.register_event_duration_secs_listener(listen)
        try:
            yield seen
        finally:
            monitoring.unregister_event_duration_listener(listen)

    return watch
