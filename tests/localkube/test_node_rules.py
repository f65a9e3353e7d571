"""The rules of process nodes that need no cluster."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localkube.node import addresses
from localkube.node.env import expand
from localkube.node.images import Images, UnknownImage, repository
from localkube.node.logs import tail_offset
from localkube.node.references import divided
from localkube.node.status import ContainerState, PodView, restarts
from localkube.node.volumes import write_atomically


@pytest.mark.parametrize(
    ("text", "value"), [("250m", 0.25), ("4Gi", 4 * 2**30), ("1e3", 1000), ("2k", 2000), ("0.5", 0.5), ("7", 7)]
)
def test_quantities(text: str, value: float) -> None:
    assert divided(text, "1m") == value * 1000


def test_a_wrong_quantity_is_named() -> None:
    with pytest.raises(ValueError, match="'4GB' is not a quantity"):
        divided("4GB", "1")


def test_a_divided_quantity_is_rounded_up() -> None:
    assert divided("1500m", "1") == 2
    assert divided("64Mi", "1Mi") == 64


@pytest.mark.parametrize(
    ("text", "expanded"),
    [("$(A)", "1"), ("$$(A)", "$(A)"), ("$(B)", "$(B)"), ("$A", "$A"), ("x$(A)$(A)", "x11"), ("$$$(A)", "$1")],
)
def test_expansion(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1"}) == expanded


@given(st.text(alphabet="ab-/ \\{}", max_size=30))
def test_text_without_dollars_is_not_changed_by_expansion(text: str) -> None:
    assert expand(text, {"a": "b"}) == text


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("team/trainer:1", "team/trainer"),
        ("ghcr.io/team/trainer@sha256:00", "team/trainer"),
        ("localhost:5000/team/operator:v1@sha256:00", "team/operator"),
        ("localkube/host", "localkube/host"),
        ("busybox:1.36", "busybox"),
    ],
)
def test_the_name_of_an_image(image: str, name: str) -> None:
    assert repository(image) == name


def test_images_choose_environments_and_a_typo_is_refused() -> None:
    images = Images(
        "/bin", {"mine": Path("/m"), "team/special": Path("/special"), "team/*": Path("/venv")}, {"mine": ["run"]}
    )
    assert images.find("team/trainer:1").path == "/venv/bin:/bin"
    assert images.find("team/special").path == "/special/bin:/bin", "the first pattern that matches counts"
    assert (images.find("mine:2").path, images.find("mine:2").entrypoint) == ("/m/bin:/bin", ["run"])
    assert images.find("localkube/host").path == "/bin"
    with pytest.raises(
        UnknownImage, match=r"'taem/trainer:1'.* \(it knows localkube/host, mine, team/special, team/\*\)"
    ):
        images.find("taem/trainer:1")


@pytest.mark.parametrize(
    ("container", "policy", "code", "init", "expected"),
    [
        ({}, "Always", 0, False, True),
        ({}, "OnFailure", 0, False, False),
        ({}, "OnFailure", 1, False, True),
        ({}, "Never", 1, False, False),
        ({}, "Always", 0, True, False),
        ({}, "Always", 1, True, True),
        ({"restartPolicy": "Always"}, "Never", 0, True, True),
        (
            {"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]},
            "Never", 42, False, True,
        ),
    ],
)  # fmt: skip
def test_who_is_restarted(container: dict[str, object], policy: str, code: int, init: bool, expected: bool) -> None:
    assert restarts(container, policy, code, init=init) is expected


def test_no_two_holders_have_one_address() -> None:
    claims = [addresses.claim() for _ in range(200)]
    assert len({claim.address for claim in claims}) == 200
    for claim in claims:
        claim.release()


trees = st.dictionaries(st.sampled_from(["a", "b", "d/x", "d/y"]), st.tuples(st.binary(max_size=4), st.just(0o640)))


@given(old=trees, new=trees)
def test_a_volume_shows_exactly_its_files(tmp_path_factory: pytest.TempPathFactory, old: dict, new: dict) -> None:  # type: ignore[type-arg]
    folder = tmp_path_factory.mktemp("v")
    write_atomically(folder, old)
    write_atomically(folder, new)
    top = {path.split("/")[0] for path in new}
    assert {entry.name for entry in folder.iterdir() if not entry.name.startswith("..")} == top
    for name, (content, mode) in new.items():
        assert (folder / name).read_bytes() == content
        assert stat.S_IMODE((folder / name).stat().st_mode) == mode
    assert len([entry for entry in os.listdir(folder) if entry.startswith("..1")]) == 1


@given(lines=st.lists(st.text(alphabet="ab", max_size=5), max_size=12), last=st.booleans(), count=st.integers(0, 15))
def test_the_tail_of_a_log(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    last: bool,
    count: int,
) -> None:
    text = "\n".join(lines) + ("\n" if lines and last else "")
    path = tmp_path_factory.mktemp("l") / "log"
    path.write_text(text)
    expected = "".join(text.splitlines(keepends=True)[-count:]) if count else ""
    assert text[tail_offset(path, count) :] == expected


def view(policy: str, *states: dict[str, object], finished: bool = False) -> PodView:
    main = [ContainerState(f"c{i}", "i", state=dict(state)) for i, state in enumerate(states)]
    spec = {"restartPolicy": policy, "containers": [{"name": state.name} for state in main]}
    return PodView({"spec": spec, "metadata": {}}, [], main, finished=finished)


RUNNING: dict[str, object] = {"running": {}}
WAITING: dict[str, object] = {"waiting": {}}


def ended(code: int) -> dict[str, object]:
    return {"terminated": {"exitCode": code}}


@pytest.mark.parametrize(
    ("pod", "phase"),
    [
        (view("Always", RUNNING, WAITING), "Pending"),
        (view("Always", RUNNING, RUNNING), "Running"),
        (view("Never", RUNNING, ended(1)), "Running"),
        (view("Never", ended(0), ended(0), finished=True), "Succeeded"),
        (view("Never", ended(0), ended(1), finished=True), "Failed"),
        (view("Never", WAITING, finished=True), "Failed"),
    ],
)
def test_phases(pod: PodView, phase: str) -> None:
    assert pod.phase() == phase


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    pod = view("Never", RUNNING)
    first = pod.conditions("t1")
    pod.pod["status"] = {"conditions": first}
    assert all(item["lastTransitionTime"] == "t1" for item in pod.conditions("t2"))
    pod.main[0].ready = True
    changed = {item["type"] for item in pod.conditions("t3") if item["lastTransitionTime"] == "t3"}
    assert changed == {"ContainersReady", "Ready"}
