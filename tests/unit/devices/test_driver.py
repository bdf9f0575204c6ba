"""Live devices: without a driver for real; with one through a stand-in for the driver's library below pynvml.

``pynvml`` itself is the installed one, so that its constants, structures, error classes and its handling of missing
values are real. Only what ``libnvidia-ml.so.1`` would answer is made up.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

import pynvml
import pytest

from memplan.devices import driver, nvml
from memplan.devices.card_readings import BytesReading
from memplan.devices.cards import DeviceKind
from memplan.devices.driver import device_used_bytes, process_used_bytes, read_cards
from memplan.devices.host_memory import HostMemory
from memplan.devices.resolving import resolve_device
from memplan.errors import DeviceError, NoDriverError
from memplan.units import GIB, MIB
from tests.fake_driver import UNAVAILABLE, FakeCard

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("closed_library")


def two_cards() -> tuple[FakeCard, FakeCard]:
    return FakeCard(uuid="GPU-1111-a"), FakeCard(uuid="GPU-2222-b", name="Tesla T4", capability=(7, 5))


def has_driver() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


no_driver = pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")


@no_driver
def test_without_a_driver_the_answer_is_plain() -> None:
    with pytest.raises(NoDriverError, match="this machine has no NVIDIA driver; plan for a card by name"):
        read_cards()


@no_driver
def test_without_the_drivers_library_a_card_is_not_taken_for_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control = tmp_path / "nvidiactl"
    control.touch()
    monkeypatch.setattr(nvml, "_CONTROL_DEVICE", control)
    with pytest.raises(DeviceError, match=r"libnvidia-ml\.so\.1.*NVIDIA_DRIVER_CAPABILITIES") as caught:
        resolve_device("auto")
    assert not isinstance(caught.value, NoDriverError)


@no_driver
def test_without_a_driver_auto_is_the_cpu_and_cuda_is_refused() -> None:
    assert resolve_device("auto", budget_bytes=GIB).kind is DeviceKind.CPU
    with pytest.raises(NoDriverError):
        resolve_device("cuda:0")


def test_a_library_without_a_loaded_driver_is_no_driver(install: Any) -> None:
    install(init_error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(NoDriverError):
        read_cards()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "updated while it was loaded; restart"),
        (pynvml.NVML_ERROR_GPU_IS_LOST, "an NVIDIA card does not answer: GPU is lost"),
        (pynvml.NVML_ERROR_UNKNOWN, "the NVIDIA driver does not answer: Unknown Error"),
    ],
)
def test_a_broken_driver_is_not_mistaken_for_none(install: Any, code: int, says: str) -> None:
    install(init_error=code)
    with pytest.raises(DeviceError, match=says) as caught:
        resolve_device("auto")
    assert not isinstance(caught.value, NoDriverError)


def test_a_card_is_read_with_the_total_that_cuda_reports(install: Any) -> None:
    install(FakeCard())
    (card,) = read_cards()
    assert (card.index, card.name, card.uuid) == (0, "NVIDIA GeForce RTX 3090", FakeCard().uuid)
    assert card.total_bytes == 24 * GIB - 312 * MIB
    assert card.free_bytes == 20 * GIB
    assert card.used_bytes == 4 * GIB - 312 * MIB
    assert (card.utilisation_percent, card.temperature_celsius) == (37, 61)
    assert (card.compute_capability, card.driver_version) == ((8, 6), "580.65.06")
    assert card.processes == ()


def test_an_old_driver_that_does_not_tell_its_own_share_is_read_without_it(install: Any) -> None:
    install(FakeCard(), lacks=("nvmlDeviceGetMemoryInfo_v2",))
    (card,) = read_cards()
    assert (card.total_bytes, card.used_bytes) == (24 * GIB, 4 * GIB)


def test_a_card_without_memory_of_its_own_has_the_hosts(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "host_memory", lambda: HostMemory(total_bytes=120 * GIB, available_bytes=100 * GIB))
    refused = dict.fromkeys(("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"), pynvml.NVML_ERROR_NOT_SUPPORTED)
    install(FakeCard(name="NVIDIA GB10", capability=(12, 1), fails=refused))
    (card,) = read_cards()
    assert (card.total_bytes, card.used_bytes, card.free_bytes) == (120 * GIB, 20 * GIB, 100 * GIB)


def test_memory_that_a_card_may_not_tell_is_not_taken_for_the_hosts(install: Any) -> None:
    refused = dict.fromkeys(("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"), pynvml.NVML_ERROR_NO_PERMISSION)
    install(FakeCard(fails=refused))
    with pytest.raises(DeviceError, match="the NVIDIA driver does not answer"):
        read_cards()


def test_what_a_card_does_not_tell_is_none(install: Any) -> None:
    silent = {
        "nvmlDeviceGetUtilizationRates": pynvml.NVML_ERROR_NOT_SUPPORTED,
        "nvmlDeviceGetTemperature": pynvml.NVML_ERROR_UNKNOWN,
        "nvmlDeviceGetComputeRunningProcesses_v3": pynvml.NVML_ERROR_NO_PERMISSION,
        "nvmlDeviceGetGraphicsRunningProcesses_v3": pynvml.NVML_ERROR_NOT_SUPPORTED,
    }
    install(FakeCard(fails=silent))
    (card,) = read_cards()
    assert (card.utilisation_percent, card.temperature_celsius, card.processes) == (None, None, None)
    assert card.processes_missing_because is not None
    assert "does not list processes" in card.processes_missing_because


def test_a_driver_older_than_a_call_does_not_list_processes(install: Any) -> None:
    install(
        FakeCard(),
        lacks=("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
    )
    (card,) = read_cards()
    assert card.processes is None


def test_a_card_that_is_lost_is_no_card_that_keeps_something_to_itself(install: Any) -> None:
    install(FakeCard(fails={"nvmlDeviceGetUtilizationRates": pynvml.NVML_ERROR_GPU_IS_LOST}))
    with pytest.raises(DeviceError, match="an NVIDIA card does not answer: GPU is lost"):
        read_cards()


def test_processes_are_listed_with_name_and_bytes(install: Any, on_host: None) -> None:
    install(FakeCard(computing={41: 3 * GIB, 42: GIB}), process_names={41: "python"})
    (card,) = read_cards()
    assert card.processes is not None
    assert [(each.pid, each.name, each.used_bytes) for each in card.processes] == [
        (41, "python", 3 * GIB),
        (42, None, GIB),
    ]


def test_a_process_that_computes_and_draws_is_listed_once(install: Any, on_host: None) -> None:
    install(FakeCard(computing={41: 2 * GIB}, drawing={41: GIB, 43: MIB}))
    (card,) = read_cards()
    assert card.processes is not None
    assert [(each.pid, each.used_bytes) for each in card.processes] == [(41, 2 * GIB), (43, MIB)]


def test_memory_of_a_process_that_the_driver_keeps_to_itself_is_none_with_a_reason(install: Any, on_host: None) -> None:
    install(FakeCard(computing={41: UNAVAILABLE}))
    (card,) = read_cards()
    assert card.processes is not None
    assert card.processes[0].used_bytes is None
    assert "does not tell the memory of single processes" in (card.processes[0].missing_because or "")
    assert process_used_bytes(0, 41).read_bytes is None


def test_one_process_and_the_whole_device_can_be_read(install: Any, on_host: None) -> None:
    install(FakeCard(computing={41: 3 * GIB}))
    assert process_used_bytes(0, 41) == BytesReading(read_bytes=3 * GIB)
    assert process_used_bytes(0, 99).missing_because == "process 99 holds nothing on card 0"
    assert device_used_bytes(0) == BytesReading(read_bytes=4 * GIB - 312 * MIB)


def test_a_card_is_read_by_the_drivers_own_name_whatever_its_number(install: Any, on_host: None) -> None:
    other = FakeCard(uuid="GPU-22222222-aaaa-bbbb-cccc-000000000000", free=10 * GIB, computing={41: 3 * GIB})
    install(FakeCard(), other)
    assert device_used_bytes(other.uuid) == BytesReading(read_bytes=14 * GIB - 312 * MIB)
    assert process_used_bytes(other.uuid, 41) == BytesReading(read_bytes=3 * GIB)
    assert device_used_bytes("GPU-33333333").read_bytes is None


def test_bytes_that_nvml_refuses_to_tell_are_none_with_the_reason(install: Any, on_host: None) -> None:
    refused = pynvml.NVML_ERROR_UNKNOWN
    install(init_error=refused)
    for reading in (device_used_bytes(0), process_used_bytes(0, 41)):
        assert reading == BytesReading(
            read_bytes=None, missing_because="the NVIDIA driver does not answer: Unknown Error"
        )


def test_in_a_container_process_ids_are_the_hosts_and_no_bytes_are_claimed(install: Any, in_container: None) -> None:
    install(FakeCard(computing={41: 3 * GIB}), process_names={41: "somebody else"})
    assert process_used_bytes(0, 41).read_bytes is None
    assert "NVML lists the host's ids" in (process_used_bytes(0, 41).missing_because or "")
    (card,) = read_cards()
    assert card.processes is not None
    assert (card.processes[0].name, card.processes[0].used_bytes) == (None, 3 * GIB)


def test_hidden_cards_are_not_read_and_the_rest_is_numbered_as_by_cuda(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(*two_cards())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [(card.index, card.name) for card in read_cards()] == [(0, "Tesla T4")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2222-b,GPU-1111")
    assert [(card.index, card.name) for card in read_cards()] == [(0, "Tesla T4"), (1, "NVIDIA GeForce RTX 3090")]


@pytest.mark.parametrize("setting", ["", "-1"])
def test_all_cards_hidden_means_none_visible(install: Any, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    install(*two_cards())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert read_cards() == ()
    assert resolve_device("auto", budget_bytes=GIB).kind is DeviceKind.CPU
    with pytest.raises(DeviceError, match=f"cuda:0 does not exist; 0 NVIDIA cards are visible with .*={setting!r}"):
        resolve_device("cuda:0")


def test_a_slice_of_a_card_is_read_by_its_own_handle(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slice_of_card = FakeCard(uuid="MIG-3333", name="NVIDIA A100-SXM4-40GB MIG 1g.5gb", total=5 * GIB, free=4 * GIB)
    install(FakeCard(), slice_of_card)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-3333")
    assert [(card.index, card.name) for card in read_cards()] == [(0, slice_of_card.name)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-unknown")
    assert read_cards() == ()


def sliced_card(*sizes_gib: int) -> list[FakeCard]:
    name = "NVIDIA A100-SXM4-40GB"
    unasked = {"nvmlDeviceGetCudaComputeCapability": pynvml.NVML_ERROR_INVALID_ARGUMENT}
    slices = [
        FakeCard(uuid=f"MIG-{gib}", name=f"{name} MIG 1g.{gib}gb", total=gib * GIB, slice_of=0, fails=unasked)
        for gib in sizes_gib
    ]
    return [FakeCard(name=name, capability=(8, 0), total=40 * GIB, is_sliced=True), *slices]


def test_of_a_sliced_card_cuda_shows_the_first_slice_and_no_whole_card(install: Any) -> None:
    parent, *slices = sliced_card(5, 10)
    install(parent, FakeCard(uuid="GPU-whole"), *slices)
    (card,) = read_cards()
    assert (card.index, card.name, card.uuid) == (0, "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "MIG-5")
    assert card.total_bytes == 5 * GIB - 312 * MIB
    assert card.compute_capability == (8, 0)  # of the card it is a slice of


def test_a_card_in_slicing_mode_without_a_slice_is_not_shown(install: Any) -> None:
    install(*sliced_card(), FakeCard(uuid="GPU-whole"))
    assert [card.uuid for card in read_cards()] == ["GPU-whole"]


def test_a_live_card_is_planned_with_what_it_offers_now(install: Any) -> None:
    install(*two_cards())
    device = resolve_device("cuda:1")
    assert (device.name, device.live_index, device.compute_capability) == ("Tesla T4", 1, (7, 5))
    assert device.total_bytes == 24 * GIB - 312 * MIB
    assert device.sm_count == 40  # from the catalogue
    assert resolve_device("cuda") == resolve_device("cuda:0") == resolve_device("auto")


def test_a_card_the_catalogue_lacks_can_still_be_used(install: Any) -> None:
    install(FakeCard(name="NVIDIA Something New"))
    assert resolve_device("cuda:0").sm_count is None


def test_a_card_that_does_not_exist_is_refused_with_their_number(install: Any) -> None:
    install(*two_cards())
    with pytest.raises(DeviceError, match="device cuda:2 does not exist; 2 NVIDIA cards are visible; see memplan gpus"):
        resolve_device("cuda:2")
    with pytest.raises(DeviceError, match="'cuda:first' is not understood"):
        resolve_device("cuda:first")


def test_the_library_is_opened_once(install: Any) -> None:
    driver = install(FakeCard())
    read_cards()
    driver.init_error = pynvml.NVML_ERROR_UNKNOWN
    assert len(read_cards()) == 1


def test_the_cpu_offers_its_budget_or_what_is_free() -> None:
    device = resolve_device("CPU", budget_bytes=3 * GIB)
    assert (device.name, device.kind, device.total_bytes) == ("cpu", DeviceKind.CPU, 3 * GIB)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < resolve_device("cpu").total_bytes <= physical


def test_cards_that_are_not_here_are_planned_by_name_or_size() -> None:
    assert resolve_device("NVIDIA A100-SXM4-40GB").name == "a100-40gb"
    assert resolve_device("24GiB").total_bytes == 24 * GIB
    assert resolve_device("3090").name == "rtx-3090"
    with pytest.raises(DeviceError, match="card 'rtx-3900' is not known; did you mean rtx-3090"):
        resolve_device("rtx-3900")
