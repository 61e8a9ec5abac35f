import pytest

from training_profiler.base.peaks import PEAKS, peak_memory_of, peak_of


@pytest.mark.parametrize(
    ("device", "dtype", "tflops"),
    [
        ("NVIDIA B200", "bfloat16", 2250.0),
        ("NVIDIA H200", "bfloat16", 989.4),
        ("NVIDIA H200 NVL", "bfloat16", 835.5),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.7),
        ("NVIDIA H100 PCIe", "float16", 756.0),
        ("NVIDIA H100 NVL", "float8_e4m3fn", 1670.5),
        ("NVIDIA GH200 480GB", "float32", 66.9),
        ("NVIDIA A100-SXM4-40GB", "bfloat16", 312.0),
        ("NVIDIA A100-PCIE-40GB", "tf32", 156.0),
        ("NVIDIA A100 80GB PCIe", "float32", 19.5),
        ("NVIDIA A10", "float16", 125.0),
        ("NVIDIA L4", "float16", 121.0),
        ("Tesla T4", "float16", 65.0),
        ("Tesla V100-SXM2-16GB", "float16", 125.0),
        ("Tesla V100-PCIE-32GB", "float32", 14.0),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2),
        ("NVIDIA GeForce RTX 3090", "float16", 71.0),
        ("AMD Instinct MI300X", "bfloat16", 1307.4),
        ("AMD Instinct MI250X", "float16", 191.5),
    ],
)
def test_the_dense_peak_depends_on_device_and_dtype(device, dtype, tflops):
    assert peak_of(device, dtype)[0] == tflops


@pytest.mark.parametrize(
    "device",
    [
        "",
        "NVIDIA A10G",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA L40S",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "AMD Instinct MI250X / MI250",
    ],
)
def test_a_similar_device_has_no_peak(device):
    assert peak_of(device, "float16") is None


@pytest.mark.parametrize(
    ("device", "tb_s"),
    [
        ("NVIDIA H100 80GB HBM3", 3.35),
        ("NVIDIA GH200 480GB", 4.0),
        ("NVIDIA GH200 144G HBM3e", 4.9),
        ("NVIDIA A100-SXM4-40GB", 1.555),
        ("NVIDIA A100-SXM4-80GB", 2.039),
        ("NVIDIA A100 80GB PCIe", 1.935),
        ("NVIDIA A100-PG509-200", None),
        ("NVIDIA A100-SXM-64GB", None),
        ("Some GPU", None),
    ],
)
def test_the_bandwidth_is_that_of_the_variant(device, tb_s):
    assert peak_memory_of(device) == tb_s


def test_an_unknown_dtype_has_no_peak_and_every_peak_a_source():
    assert peak_of("Tesla T4", "bfloat16") is None
    assert all(peak.source for peak in PEAKS)
