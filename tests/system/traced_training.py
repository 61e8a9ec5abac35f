"""A training that traces, scripts, exports or compiles its model and another one, alone and under the profiler."""

import json
import re
from pathlib import Path
from typing import Any

from tests.system.launching import execute_forked
from tests.system.scripts import Outcome

STEPS = 40
SCRIPT = """
import contextlib, copy, hashlib, io, json, sys, tempfile, warnings, zipfile
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import grad

torch.manual_seed(0)
warnings.simplefilter("ignore", ResourceWarning)  # of torch, whenever garbage is collected

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.scripted = torch.jit.script(nn.Linear(16, 16))
        self.head = nn.Linear(16, 3)
    def forward(self, x):
        return self.head(self.scripted(self.body(x.to("cpu"))))

def script_text(module):
    stacks = [node.sourceRange() for node in module.inlined_graph.nodes()]
    return [str(module.inlined_graph), str(module.graph), module.code, stacks]

def graph_text(module):
    return [str(module.graph), module.code, [str(node.meta.get("stack_trace")) for node in module.graph.nodes]]

def exported_text(program):
    return [str(program), graph_text(program.graph_module)]

def gradient(x):
    y = (x * x).sum()
    return grad([y], [x])[0]

def gradient_by_name(x):
    y = (x * x).sum()
    return torch.autograd.grad([y], [x])[0]

def compiled(model, x):
    from torch._dynamo.backends.registry import lookup_backend
    torch._dynamo.reset()
    texts = []
    def seen(module, inputs):
        texts.append(graph_text(module))
        return lookup_backend("aot_eager")(module, inputs)
    def function(x):
        return model(x) * 2
    outputs = [torch.compile(each, backend=seen)(x).sum().item().hex() for each in (function, copy.deepcopy(model))]
    explained = torch._dynamo.explain(function)(x)
    return [texts, outputs, explained.graph_count, explained.graph_break_count]

def transformed(model, x):
    from torch.func import functional_call, grad, vmap
    values = {**dict(model.named_parameters()), **{name: each.clone() for name, each in model.named_buffers()}}
    values = {name: each.detach() for name, each in values.items()}
    gradients = grad(lambda values, x: functional_call(model, values, (x,)).sum(), argnums=1)(values, x)
    return [gradients.tolist(), vmap(torch.sin)(x).tolist()]

def counted(model, x):
    from torch.utils.flop_counter import FlopCounterMode
    with FlopCounterMode(display=False) as counter:
        model(x)
        model(x)
    return sorted((str(name), str(flops)) for name, flops in counter.get_flop_counts()["Global"].items())

def prepared(model, x):
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx
    prepared = prepare_fx(copy.deepcopy(model).eval(), get_default_qconfig_mapping(), (x,))
    prepared(x)
    return [graph_text(prepared), graph_text(convert_fx(prepared))]

def saved(model, x):
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(model, x, check_trace=False), file)
    archive = zipfile.ZipFile(file)
    return [[name, hashlib.sha256(archive.read(name)).hexdigest()] for name in archive.namelist()]

def by_tensorboard(model, x):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter
    with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:
        writer.add_graph(model, x)
        writer.flush()
        return str(EventAccumulator(folder).Reload().Graph())

def by_onnx(**options):
    def export(model, x):
        import onnx
        file = io.BytesIO()
        with contextlib.redirect_stdout(io.StringIO()):
            torch.onnx.export(PLAIN, (x,), file, **options)
        return str(onnx.load_from_string(file.getvalue()))  # with stacks, if verbose
    return export

def make_fx(model, x):
    from torch.fx.experimental.proxy_tensor import make_fx
    def gradients(values, x):
        with torch.enable_grad():
            loss = torch.func.functional_call(model, values, (x,)).sum()
            return torch.autograd.grad(loss, list(values.values()))
    return graph_text(make_fx(gradients)(dict(model.named_parameters()), x))

PLAIN = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
WAYS = {
    "jit.trace": lambda model, x: script_text(torch.jit.trace(model, x)),
    "jit.save": saved,
    "jit.script": lambda model, x: script_text(torch.jit.script(PLAIN)),
    "jit.script, gradients": lambda model, x: [
        torch.jit.script(each)(torch.ones(2, requires_grad=True)).tolist() for each in (gradient, gradient_by_name)
    ],
    "make_fx": make_fx,
    "counted": counted,
    "transformed": transformed,
    "prepared": lambda model, x: prepared(PLAIN, x),
    "export, strict": lambda model, x: exported_text(torch.export.export(PLAIN, (x,), strict=True)),
    "export, decomposed": lambda model, x: exported_text(torch.export.export(PLAIN, (x,)).run_decompositions()),
    "tensorboard": by_tensorboard,
    "onnx": by_onnx(dynamo=True, verbose=False),
    "onnx by scripts": by_onnx(dynamo=False, verbose=True),
    "compile, aot_eager": lambda model, x: compiled(PLAIN, x),
}

def made(model, x):
    with warnings.catch_warnings(record=True) as caught, torch.random.fork_rng():
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)
        with torch.set_grad_enabled(torch.is_grad_enabled() or sys.argv[1] == "jit.script, gradients"):
            text = WAYS[sys.argv[1]](model, x)
    return [text, [[str(each.message), each.filename, each.lineno] for each in caught]]

def look():
    for model in (PLAIN, net):
        seen.append(made(model, x))

# These take as long as all others: one look of each kind will do.
is_slow = sys.argv[1].startswith(("compile,", "export,", "onnx"))
moments = (4, 6) if is_slow else (0, 4, 6, 8, 35, 36)
net, x, seen, losses = Net(), torch.randn(4, 8), [], []
optimizer = torch.optim.AdamW(net.parameters(), 0.01)
look()
for step in range(40):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(torch.randn(16, 8)), torch.randint(3, (16,)))
    if step == 2:
        look()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
    if step in moments and step not in (6, 36):
        look()
    if step in (6, 36):
        net.eval()
        with torch.no_grad():
            net(x)
            if step in moments:
                look()
            net(x)
        net.train()
look()
json.dump([seen, losses], open(sys.argv[2], "w"))
"""
EXECUTED = ("counted", "transformed", "prepared", "compile, aot_eager")  # a model, too


def result(cwd: Path, way: str, is_profiled: bool) -> tuple[Any, Outcome]:
    """Return what the training made by this ``way``, with its losses, and how it ended."""
    (cwd / "train.py").write_text(SCRIPT)
    file = cwd / f"{is_profiled}.json"
    outcome = Outcome(*execute_forked(cwd, "train.py", way, file.name, is_profiled=is_profiled), cwd)
    assert outcome.status == 0, outcome.stderr
    return without_addresses(json.loads(file.read_text())), outcome


def without_addresses(value: Any) -> Any:
    if isinstance(value, list):
        return [without_addresses(each) for each in value]
    return re.sub(r"0x[0-9a-f]+|\b\d{15}\b", "", value) if isinstance(value, str) else value


def assert_traced_as_alone(cwd: Path, way: str) -> None:
    """Before the first step, in it, in steps that are inspected, in evaluations, and after them."""
    (alone, losses), _ = result(cwd, way, is_profiled=False)
    (seen, same), outcome = result(cwd, way, is_profiled=True)
    assert same == losses
    assert seen == alone
    report = outcome.report
    assert report["steps"] == STEPS
    counts = {name: section["count"] for name, section in report["sections"].items()}
    assert counts["optimizer_step"] == STEPS
    if way not in EXECUTED:
        names = ("forward_pass", "backward_pass", "validation_epoch/forward_pass")
        assert [counts[name] for name in names] == [STEPS, STEPS, 4]
    assert not any("replaced" in note or "not instrumented" in note for note in report["health"]["notes"])
