"""`mamba_inner` on a rank's slice of time."""

import torch

from .._operations import CAUSAL_CONV1D, SELECTIVE_SCAN
from .mamba import MAMBA, Call, step_gradients
from .ranks import OF_PASS, convolved_back, over_ranks, run, run_back
from .shared import Parts, differentiable, matrix, project, project_back, projection_gradients, through_decays


def _forward(save, arguments, place):
    *own, name = arguments
    call = Call(own, Parts(own[0]), place=place)
    given = call.given
    x, _, of_conv = run(CAUSAL_CONV1D, name, save, call.convolution())
    projected, low = call.projected(x.transpose(1, 2))
    # without data there is no place
    maps = [part.like(projected) if place is None else part.of(Parts(projected), place) for part in call.maps]
    y, final, of_scan = run(SELECTIVE_SCAN, name, save, call.scan(x, call.steps(low).transpose(1, 2), maps))
    y = y.transpose(1, 2)
    out = project(y, given.outproj_weight, given.outproj_bias)
    if not save:
        return [out.contiguous(), final]
    nothing = given.xz.new_empty(0)
    kept = [nothing if out is y else y.contiguous(), call.A if given.A_log else nothing]
    return [out.contiguous(), final, *kept, *of_conv, *of_scan]


def _scan_gradients(name, call, scan, saved, gradients, needed):
    """The gradients by x, dt, A, B, C, D, the gate and the bias of step sizes."""
    by_maps = [wanted if part.given is not None else True for part, wanted in zip(call.maps, needed[10:12])]
    asked = [True, True, needed[6], *by_maps, needed[7], True, needed[5]]
    found = run_back(SELECTIVE_SCAN, name, asked, scan, saved, gradients)
    by_x, by_dt, by_A, by_B, by_C, by_D, by_z, by_bias, *_ = found
    if by_A is not None and call.given.A_log:
        by_A = through_decays(by_A, call.A, call.given.A)
    return (by_x, by_dt), (by_B, by_C), (by_A, by_D, by_bias), by_z


def _backward(needed, arguments, saved, gradients, place):
    *own, name = arguments
    (y, A, *rest), (by_out, by_state) = saved, gradients
    of_conv, of_scan = rest[: len(OF_PASS)], rest[len(OF_PASS) :]
    call = Call(own, Parts(own[0]), A if A.numel() > 0 else None, place)
    given, of = call.given, Parts(torch.empty_like(arguments[0]))
    by_out, projection = matrix(by_out), (given.outproj_weight, given.outproj_bias)
    by_y = project_back(by_out, projection[0], lambda: call.matrix(call.dim))
    by_projection = projection_gradients(by_out, lambda: y, projection, needed[8:10])
    # computed again, behind the inputs of the ranks before
    convolved = call.room(call.dim)
    x = convolved.transpose(1, 2)
    call.convolve(x, of_conv[1])
    projected, low = call.projected(convolved)
    channels, by_y = Parts(projected), by_y.view(convolved.shape).transpose(1, 2)
    maps = [part.of(channels, place) for part in call.maps]
    scan = call.scan(x, call.steps(low).transpose(1, 2), maps)
    timed, by_maps, (by_A, by_D, by_dt_bias), by_z = _scan_gradients(name, call, scan, of_scan, (by_y, by_state), needed)
    of.timed(call.dim, call.dim).copy_(by_z)
    by_x, by_dt = (gradient.transpose(1, 2).contiguous() for gradient in timed)
    by_channels, by_others = Parts(torch.empty_like(projected)), []
    for number, part, by_map in zip((12, 13), call.maps, by_maps):
        if part.is_view:
            part.view(by_channels).copy_(by_map)
        by_others.append(part.back(by_map, channels, by_channels, needed[number : number + 3 : 2], place))
    scanned = [matrix(rows) for rows in (convolved, projected, low)]
    *by_weights, by_dt_norm = step_gradients(call, scanned, [matrix(g) for g in (by_x, by_dt, by_channels.tensor)], needed)
    by_conv = convolved_back(name, call, of_conv, by_x.transpose(1, 2), of, needed[1:3])
    by_others = (gradient for pair in zip(*by_others) for gradient in pair)
    return of.tensor, *by_conv, *by_weights, by_dt_bias, by_A, by_D, *by_projection, *by_others, by_dt_norm


def _allocate(save, arguments):
    return _forward(save, arguments, None)


mamba_inner_ranks = differentiable(over_ranks(MAMBA), _forward, _backward, _allocate)
