"""An exported program as TorchScript.

Tracing would fix the batch size wherever Python asks a tensor for its length; an exported program has kept it open.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx


def scripted(program: torch.export.ExportedProgram) -> torch.jit.ScriptModule:
    """Return a program of one tensor to two tensors as a TorchScript module, its weights as buffers.

    Each operation is written out as a call that TorchScript's compiler knows: operators without the overload that it
    chooses itself, sizes as whole numbers, and no assertions on the device, so that the module can move to another.
    """
    module = fx.GraphModule({}, fx.Graph())
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}

    def mapped(argument: fx.node.Argument) -> fx.node.Argument:
        return fx.node.map_arg(argument, made.__getitem__)

    weights = _weights(program)
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in weights:
            name = f"tensor_{len(made)}"
            module.register_buffer(name, weights[node.name])
            made[node] = graph.get_attr(name)
        elif node.op == "placeholder":
            made[node] = graph.placeholder(node.name, type_expr=Tensor)
        elif node.op == "output":
            graph.output(mapped(node.args[0]), type_expr=tuple[Tensor, Tensor])
        elif not str(node.target).startswith(("aten._assert", "aten.sym_constrain")):
            made[node] = graph.node_copy(node, made.__getitem__)
            made[node].target = _known(node.target)
    module.graph = graph
    script: torch.jit.ScriptModule = torch.jit.script(module)
    return script


def _weights(program: torch.export.ExportedProgram) -> dict[str, Tensor]:
    """Return the tensors that a program takes beside its input, by the name of their place in it."""
    signature = program.graph_signature
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    values = {**program.state_dict, **program.constants}
    return {place: values[name].detach() for place, name in names.items()}


def _known(target: str | Callable[..., object]) -> str | Callable[..., object]:
    if target is torch.ops.aten.sym_size.int:
        return torch.ops.aten.size
    return target.overloadpacket if isinstance(target, torch._ops.OpOverload) else target
