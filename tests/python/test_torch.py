"""What PyTorch expects of an operation: its gradients checked by differences, the compiler, and everything built on dispatch."""

import os
import subprocess
import sys
import tempfile

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import statescan
import statescan.torch  # registers torch.ops.statescan
from cases import CASES, Random, results
from processes import server
from statescan._gradients import differentiable
from test_results import assert_close, gradients

each_case = pytest.mark.parametrize("name", CASES)
# one for each operation
ONE_EACH = ["selective_scan_everything", "ssd_everything", "s5_inner_real", "linear_scan_state", "causal_conv1d_everything"]
one_each = pytest.mark.parametrize("name", ONE_EACH)


def small(name):
    """The case with its first steps only: differences are slow."""
    case = CASES[name]
    seqlen = {"ssd": 1, "gated_delta_rule": 1}.get(case.op, -1)
    length = next(iter(case.tensors.values())).shape[seqlen]
    cut = 70 if "packed" in name else 6

    def shortened(argument, tensor):
        if argument == "cu_seqlens":
            return torch.tensor([0, 3, 3, 70, 70])
        axis = -1 if argument == "seq_idx" else seqlen
        axes_match = tensor.dim() >= 2 and -tensor.dim() <= axis < tensor.dim() and tensor.shape[axis] == length
        return tensor.narrow(axis, 0, cut) if axes_match else tensor

    return type(case)(case.op, {n: shortened(n, t) for n, t in case.tensors.items()}, case.options)


@each_case
def test_gradcheck(name):
    case = small(name)
    leaves = {n: t.detach().clone().requires_grad_() for n, t in case.floats().items()}

    def call(*values):
        return case(**dict(zip(leaves, values, strict=True)))

    assert torch.autograd.gradcheck(call, list(leaves.values()), fast_mode=True, atol=1e-6)


@pytest.mark.parametrize("graded", [False, True])
def test_forward_derivatives_are_refused(graded):
    x, A, B = torch.randn(1, 4, 8), -torch.rand(4, 2), torch.randn(1, 2, 8)
    state, step = torch.zeros(1, 4, 2), torch.randn(1, 4)
    with torch.set_grad_enabled(graded), forward_ad.dual_level():
        statescan.selective_scan(x, x, A, B, B)
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(RuntimeError, match="selective_scan has no derivatives in forward mode"):
            statescan.selective_scan(dual, x, A, B, B)
        dual = forward_ad.make_dual(step, torch.ones_like(step))
        with pytest.raises(RuntimeError, match="selective_state_update has no gradient"):
            statescan.selective_state_update(state, dual, step, A, B[:, :, 0], B[:, :, 0])


def arguments_in_order(op, case):
    """The arguments of the operation in PyTorch's library, taken from a call."""
    seen = []
    real = statescan.torch._FORWARD[op]
    try:
        statescan.torch._FORWARD[op] = lambda save, arguments: seen.append((save, *arguments)) or real(save, arguments)
        with torch.no_grad():
            case()
    finally:
        statescan.torch._FORWARD[op] = real
    return seen[0]


# a sample has cases of each operation
each_operation_and_case = pytest.mark.parametrize("name", CASES, ids=[f"{case.op}-{name}" for name, case in CASES.items()])


@pytest.mark.sampled(14)
@each_operation_and_case
@pytest.mark.parametrize("length", ["long", "short"])
@pytest.mark.parametrize("save", [False, True], ids=["bare", "saved"])
def test_opcheck_forward(name, length, save):
    case = small(name) if length == "short" else CASES[name]
    op = case.op.removesuffix("_fn")
    _, *arguments = arguments_in_order(op, case)
    torch.library.opcheck(getattr(torch.ops.statescan, f"{op}_forward").default, (save, *arguments))


@pytest.mark.sampled(7)
@each_operation_and_case
def test_opcheck_backward(name):
    case = CASES[name]
    op = case.op.removesuffix("_fn")
    _, *arguments = arguments_in_order(op, case)
    first, second, *saved = statescan.torch._FORWARD[op](True, tuple(arguments))
    operation = next(o for o in statescan.torch.OPERATIONS if o.name == op)
    if operation.keeps_result:
        saved = [first]
    needed = [t is not None for t in arguments[: operation.differentiable]]
    cotangents = torch.randn_like(first), torch.randn_like(second)
    backward = getattr(torch.ops.statescan, f"{op}_backward").default
    torch.library.opcheck(backward, (needed, *arguments, *saved, *cotangents))


@pytest.mark.sampled(16)
@each_case
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiled(name, dynamic):
    """In one graph, with gradients."""
    case = CASES[name].to(torch.float32)

    def call(leaves):
        return tuple(2 * out for out in case(**leaves))

    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    torch._dynamo.reset()
    expected = gradients(lambda **leaves: call(leaves), case)
    got = gradients(lambda **leaves: compiled(leaves), case)
    for argument in expected:
        assert_close(got[argument], expected[argument], 1e-5, argument)
    with torch.no_grad():
        for a, b in zip(compiled(case.tensors), call(case.tensors), strict=True):
            assert torch.equal(a, b)


def test_compiled_by_inductor():
    case = CASES["selective_scan_everything"].to(torch.float32)
    compiled = torch.compile(lambda **leaves: case(**leaves), fullgraph=True)
    expected, got = gradients(case, case), gradients(compiled, case)
    for argument in expected:
        assert_close(got[argument], expected[argument], 1e-5, argument)


def test_dynamic_shapes_need_one_graph():
    torch._dynamo.reset()
    count = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, dynamic=True, backend=count)
    def call(x, dt, A, B, C):
        return statescan.selective_scan(x, dt, A, B, C)[0].sum()

    r = Random()
    A = r.decay(6, 4).requires_grad_()
    for batch, seqlen in [(2, 83), (3, 130), (5, 17)]:
        call(r.real(batch, 6, seqlen), r.step(batch, 6, seqlen), A, r.real(batch, 4, seqlen), r.real(batch, 4, seqlen)).backward()
    assert count.frame_count == 1


def test_compiled_with_one_tensor_for_two_arguments():
    def call(a):
        return statescan.linear_scan(a, a)[0].sum()

    a = Random().step(3, 20).requires_grad_()
    (expected,) = torch.autograd.grad(call(a), a)
    (got,) = torch.autograd.grad(torch.compile(call, fullgraph=True, backend="aot_eager")(a), a)
    assert torch.equal(got, expected)


@one_each
@pytest.mark.parametrize("strict", [False, True], ids=["traced", "strict"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_export(name, strict, training):
    case = CASES[name].to(torch.float32)

    class Module(torch.nn.Module):
        def forward(self, **tensors):
            return case(**tensors)

    tensors = {n: t.clone().requires_grad_(training) for n, t in case.floats().items()}
    with torch.set_grad_enabled(training):
        exported = torch.export.export(Module(), (), tensors, strict=strict)
        for got, expected in zip(exported.module()(**tensors), case(), strict=True):
            assert torch.equal(got, expected)


@one_each
@pytest.mark.parametrize("strict", [False, True], ids=["traced", "strict"])
def test_gradients_of_what_was_exported_without(name, strict):
    """A program of inputs without gradients has them where it is given others."""
    case = CASES[name]

    class Module(torch.nn.Module):
        def forward(self, **tensors):
            return case(**tensors)

    program = torch.export.export(Module(), (), case.floats(), strict=strict).module()
    expected, got = gradients(case, case), gradients(lambda **leaves: program(**leaves), case)
    assert all(torch.equal(got[argument], expected[argument]) for argument in expected)


def test_export_with_any_length():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.A = torch.nn.Parameter(Random().decay(6, 4))

        def forward(self, x, dt, B, C):
            return statescan.selective_scan(x, dt, self.A, B, C)[0]

    def inputs(seqlen):
        r = Random()
        return r.real(2, 6, seqlen), r.step(2, 6, seqlen), r.real(2, 4, seqlen), r.real(2, 4, seqlen)

    module, seqlen = Module(), torch.export.Dim("seqlen", min=2, max=4096)
    exported = torch.export.export(module, inputs(70), dynamic_shapes=({2: seqlen},) * 4, strict=False)
    assert torch.equal(exported.module()(*inputs(300)), module(*inputs(300)))


@one_each
def test_activation_checkpointing(name):
    case = CASES[name]
    keep = list(case.floats())

    def call(*values):
        return case(**dict(zip(keep, values, strict=True)))

    expected = gradients(case, case)
    got = gradients(lambda **leaves: checkpoint(call, *(leaves[n] for n in keep), use_reentrant=False), case)
    assert all(torch.equal(got[n], expected[n]) for n in expected)


def test_autocast():
    """Layers under autocast give bfloat16 activations; parameters and states stay in float32."""
    case = CASES["selective_scan_everything"].to(torch.float32)
    project = torch.nn.Linear(6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        x = project(case.tensors["x"].transpose(1, 2)).transpose(1, 2)
        y, state = case(x=x)
    assert x.dtype == y.dtype == torch.bfloat16 and state.dtype == torch.float32
    (y.float().sum() + state.sum()).backward()
    assert project.weight.grad.dtype == torch.float32 and project.weight.grad.abs().sum() > 0


def test_lazily_conjugated_and_negated_tensors():
    case = CASES["simplified_scan_bilinear"]
    conjugated = {n: case.tensors[n].conj() for n in "uABC"}
    for got, expected in zip(case(**conjugated), case(**{n: t.resolve_conj() for n, t in conjugated.items()}), strict=True):
        assert torch.equal(got, expected)
    imaginary = case.tensors["u"].conj().imag
    assert imaginary.is_neg()
    got = statescan.linear_scan(imaginary, imaginary)[0]
    assert torch.equal(got, statescan.linear_scan(imaginary.resolve_neg(), imaginary.resolve_neg())[0])


def test_only_wanted_gradients_are_computed(monkeypatch):
    case, wanted = CASES["selective_scan_everything"], []
    real = statescan.torch._BACKWARD["selective_scan"]

    def spy(needed, arguments):
        wanted.append(needed)
        return real(needed, arguments)

    # the operation holds on to its gradient, so one is made that calls the spy
    op = statescan.torch.OPERATIONS[0]
    function = differentiable(op, statescan.torch._FORWARD[op.name], spy)
    monkeypatch.setitem(statescan.torch._WITH_GRADIENT, op.name, function)
    C = case.tensors["C"].clone().requires_grad_()
    case(C=C)[0].sum().backward()
    assert wanted == [tuple(name == "C" for name in ("x", "dt", "A", "B", "C", "D", "z", "dt_bias", "deltaA", "initial_state"))]


@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_a_recorded_call_runs_again():
    r = Random()
    a = r.step(3, 20)
    traced = torch.jit.trace(lambda a, b: statescan.linear_scan(a, b)[0], (a, r.real(3, 20)))
    b = r.real(3, 20)
    assert torch.equal(traced(a, b), statescan.linear_scan(a, b)[0])


def test_inference_mode():
    with torch.inference_mode():
        y, state = CASES["selective_scan"]()
        assert y.is_inference() and state.is_inference()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_has_threads_of_its_own():
    """Data loaders fork: threads of the parent are not there in the child.

    They give PyTorch one thread there: its own operations would wait for the others.
    """
    code = """
import os, torch, statescan
statescan.set_num_threads(2)
a = torch.rand(64, 64, 512)
expected = statescan.linear_scan(a, a)[0]
child = os.fork()
if child == 0:
    torch.set_num_threads(1)
    os._exit(0 if torch.equal(statescan.linear_scan(a, a)[0], expected) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    # in a process of its own: what other tests have loaded must not be forked
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.split() == ["0"], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_may_import_later():
    """PyTorch's threads were used before the fork, where nothing of ours could notice."""
    code = """
import os, torch
torch.set_num_threads(2)
a = torch.rand(64, 64, 512)
a.exp()
child = os.fork()
if child == 0:
    torch.set_num_threads(1)
    import statescan
    statescan.set_num_threads(2)
    two = statescan.linear_scan(a, a)[0]
    statescan.set_num_threads(1)
    os._exit(0 if torch.equal(statescan.linear_scan(a, a)[0], two) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.split() == ["0"], done.stderr


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="PyTorch's threads are used on Linux")
def test_work_runs_on_the_threads_of_pytorch():
    code = """
import os, torch, statescan
statescan.set_num_threads(2)
a = torch.rand(64, 64, 512)
one = statescan.linear_scan(a, a)[0]
names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
statescan.set_num_threads(1)
equal = torch.equal(one, statescan.linear_scan(a, a)[0])
print("libgomp" in open("/proc/self/maps").read(), any(name.startswith("statescan") for name in names), equal)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    loaded, own, equal = done.stdout.split()
    assert equal == "True"
    if loaded != "True":
        pytest.skip("this PyTorch has no libgomp")
    assert own == "False", "threads of our own beside those of PyTorch"


class Layer(torch.nn.Module):
    """A scan between two projections."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.project = torch.nn.Linear(6, 6 + 6 + 4 + 4)
        self.A = torch.nn.Parameter(-torch.rand(6, 4, generator=generator))
        self.out = torch.nn.Linear(6, 6)
        for parameter in (*self.project.parameters(), *self.out.parameters()):
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)

    def forward(self, x):
        x, dt, B, C = self.project(x).transpose(1, 2).split([6, 6, 4, 4], 1)
        y, _ = statescan.selective_scan(x, dt, self.A, B, C, dt_softplus=True)
        return self.out(y.transpose(1, 2))


def sharded(model_of, rank, world):
    """Parameters after one training step of a sharded layer."""
    layer = Layer()
    model = model_of(layer)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model(data()[rank::world]).square().mean().backward()
    optimiser.step()
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in layer.parameters()]
    return [p.detach().numpy() for p in whole]


def sharded_steps(rank, world, store, answers):
    """A step with either way to share the work; the first process gives the parameters after it."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    found = {"ddp": sharded(torch.nn.parallel.DistributedDataParallel, rank, world)}
    # fully_shard of PyTorch 2.6 needs a GPU
    if torch.__version__ >= "2.7":
        mesh = torch.distributed.init_device_mesh("cpu", (world,))
        found["fsdp"] = sharded(lambda layer: torch.distributed.fsdp.fully_shard(layer, mesh=mesh), rank, world)
    if rank == 0:
        answers.put(found)
    torch.distributed.barrier()  # nobody leaves while the other still receives
    torch.distributed.destroy_process_group()
    # A mesh keeps its process group, whose threads drop the tensors of the last transfers when they come to it. They need the
    # interpreter for that, and one that has begun to end would end the process by an abort.
    os._exit(0)


def data():
    return torch.randn(4, 40, 6, generator=torch.Generator().manual_seed(4))


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch was built without distributed")
def test_sharded_training():
    """Two processes compute the step that one does."""
    layer = Layer()
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(data()).square().mean().backward()
    optimiser.step()

    context = server()
    answers = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (2, os.path.join(folder, "store"), answers)
        processes = [context.Process(target=sharded_steps, args=(rank, *arguments)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(600)
    assert [process.exitcode for process in processes] == [0, 0]
    for sharding, parameters in answers.get().items():
        for got, expected in zip(parameters, layer.parameters(), strict=True):
            torch.testing.assert_close(
                torch.from_numpy(got), expected.detach(), rtol=1e-5, atol=1e-6, msg=lambda words, way=sharding: f"{way}: {words}"
            )


@one_each
def test_outputs_are_new(name):
    case = CASES[name]
    inputs = {t.untyped_storage().data_ptr() for t in case.tensors.values()}
    assert all(out.untyped_storage().data_ptr() not in inputs for out in results(case()))
