"""What AMD SMI says of a GPU under ROCm, by a stand-in with the names and units that its reference documents."""

from types import SimpleNamespace

import pytest

from training_profiler.sampling.gpu import Gpus

GIB = 2**30
MI300X = {
    "amdsmi_get_gpu_vram_usage": {"vram_total": 192 * 1024, "vram_used": 2048},
    "amdsmi_get_gpu_activity": {"gfx_activity": 87, "umc_activity": 30, "mm_activity": "N/A"},
    "amdsmi_get_temp_metric": 71,
    "amdsmi_get_power_info": {"current_socket_power": 640, "average_socket_power": "N/A"},
    "amdsmi_get_clock_info": {"clk": 1900, "max_clk": 2100},
}
KNOWN = {"used_bytes": 2 * GIB, "utilization": 0.87, "temperature_c": 71, "power_w": 640, "clock_mhz": 1900}


class AmdSmiError(Exception):
    pass


class FakeSmi:
    AmdSmiException = AmdSmiError
    AmdSmiTemperatureType = SimpleNamespace(JUNCTION=1)
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)
    AmdSmiClkType = SimpleNamespace(GFX=0)

    def __init__(self, **answers):
        self.answers = MI300X | answers
        self.begun = 0

    def amdsmi_init(self):
        self.begun += 1
        if self.answers.get("amdsmi_init"):
            raise AmdSmiError

    def amdsmi_get_processor_handle_from_bdf(self, address):
        if address != "0000:c1:00.0":
            raise AmdSmiError
        return "handle"

    def __getattr__(self, name):
        if self.answers.get(name, AttributeError) is AttributeError:
            raise AttributeError(name)

        def call(handle, *_):
            assert handle == "handle"
            if self.answers[name] is AmdSmiError:
                raise AmdSmiError
            return self.answers[name]

        return call


def readings(smi, bus=0xC1, size=192 * GIB):
    device = {"name": "AMD Instinct MI300X", "total_memory": size, "pci_domain_id": 0, "pci_device_id": 0}
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        memory_stats=lambda _: {"reserved_bytes.all.current": 10},
        get_device_properties=lambda _: SimpleNamespace(**device, pci_bus_id=bus, uuid="abc"),
    )
    gpus = Gpus({"torch": SimpleNamespace(cuda=cuda), "amdsmi": smi}.get)
    (_,), (reading,) = gpus.read(), gpus.read()
    gpus.close()
    return {name: value for name, value in reading.values.items() if name != "reserved_bytes"}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, KNOWN),
        ({"amdsmi_get_power_info": {"current_socket_power": "N/A", "average_socket_power": 500}}, {"power_w": 500}),
        ({"amdsmi_get_power_info": {"current_socket_power": "N/A", "average_socket_power": "N/A"}}, {"power_w": None}),
        ({"amdsmi_get_power_info": {}}, {"power_w": None}),
        ({"amdsmi_get_gpu_activity": {"gfx_activity": "N/A"}}, {"utilization": None}),
        ({"amdsmi_get_temp_metric": AmdSmiError}, {"temperature_c": None}),
        ({"amdsmi_get_clock_info": AttributeError}, {"clock_mhz": None}),
    ],
)  # fmt: skip
def test_quantities_that_a_card_has_are_read_and_others_left_out(answers, expected):
    wanted = {name: value for name, value in (KNOWN | expected).items() if value is not None}
    smi = FakeSmi(**answers)
    assert readings(smi) == pytest.approx(wanted)
    assert smi.begun == 1


@pytest.mark.parametrize(
    "case",
    [
        {"smi": None},
        {"smi": FakeSmi(amdsmi_init=True)},
        {"smi": FakeSmi(), "bus": 0xC2},
        {"smi": FakeSmi(), "size": 24 * GIB},  # a part of the card
    ],
)
def test_a_device_that_is_not_found_for_sure_has_no_figures(case):
    assert readings(**case) == {}
