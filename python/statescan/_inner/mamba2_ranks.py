"""`mamba2_inner` on a rank's slice of time."""

import torch

from .._operations import CAUSAL_CONV1D, SSD
from .mamba2 import MAMBA2, Call, norm_backward, unit_backward
from .ranks import OF_PASS, convolved_back, over_ranks, run, run_back
from .shared import Parts, differentiable, matrix, project, project_back, projection_gradients, through_decays


def _forward(save, arguments, place):
    *own, name = arguments
    call = Call(own, Parts(own[0]), place=place)
    given, width = call.given, call.width
    normed = given.rmsnorm_weight is not None
    xBC, _, of_conv = run(CAUSAL_CONV1D, name, save, call.convolution())
    scanned = call.scanned(Parts(xBC.transpose(1, 2).contiguous()))
    y, final, of_scan = run(SSD, name, save, call.ssd(scanned))
    y, made = y.flatten(2), call.room(width)
    if not normed:
        made[..., width - call.dim :] = y
    # without data there is no place
    if place is not None:
        call.finish(y, made)
    out = project(made, given.outproj_weight, given.outproj_bias)
    if not save:
        return [out, final]
    nothing = given.zxbcdt.new_empty(0)
    kept = y if normed else made if given.outproj_weight is not None else nothing
    return [out, final, kept, call.A if given.A_log else nothing, *of_conv, *of_scan]


def _scan_gradients(name, call, scan, saved, gradients, needed):
    """The gradients by x, B and C, by A, D, the bias of step sizes and the initial state, and by step sizes and the gate."""
    gated = call.given.rmsnorm_weight is None
    asked = [True, True, needed[4], True, True, needed[5], gated, needed[3], False, needed[9]]
    found = run_back(SSD, name, asked, scan, saved, gradients)
    by_x, by_dt, by_A, by_B, by_C, by_D, by_z, by_bias, _, by_initial = found
    if by_A is not None and call.given.A_log:
        by_A = through_decays(by_A, call.A, call.given.A)
    return (by_x, by_B, by_C), (by_A, by_D, by_bias, by_initial), by_dt, by_z


def _backward(needed, arguments, saved, gradients, place):
    *own, name = arguments
    (y, A, *rest), (by_out, by_state) = saved, gradients
    of_conv, of_scan = rest[: len(OF_PASS)], rest[len(OF_PASS) :]
    call = Call(own, Parts(own[0]), A if A.numel() > 0 else None, place)
    given, of = call.given, Parts(torch.empty_like(arguments[0]))
    by_out, projection = matrix(by_out), (given.outproj_weight, given.outproj_bias)
    by_made = project_back(by_out, projection[0], lambda: call.matrix(call.width))
    by_y, by_weight = by_made, None
    if given.rmsnorm_weight is not None:
        by_y, by_weight = norm_backward(call, y, by_made, of, needed)
    if call.unit:
        unit_backward(call, of.tensor, by_made)
    by_projection = projection_gradients(by_out, lambda: call.projected(y), projection, needed[7:9])
    # computed again, behind the inputs of the ranks before
    scan = call.ssd(call.convolve(Parts(call.room(call.convolved)), before=of_conv[1]))
    by_y = by_y.view(*call.shape, by_y.shape[-1])
    cotangents = call.heads(Parts(by_y), by_y.shape[-1]), by_state
    by_scanned, (by_A, by_D, by_dt_bias, by_initial), by_dt, by_z = _scan_gradients(name, call, scan, of_scan, cotangents, needed)
    call.step_sizes(of).copy_(by_dt)
    if by_z is not None:
        call.gate(of).copy_(by_z)
    by_conv = Parts(call.room(call.convolved))
    for part, gradient in zip(call.scanned(by_conv), by_scanned):
        part.copy_(gradient)
    by_filter = convolved_back(name, call, of_conv, by_conv.timed(0, call.convolved), of, needed[1:3])
    return of.tensor, *by_filter, by_dt_bias, by_A, by_D, by_weight, *by_projection, by_initial


def _allocate(save, arguments):
    return _forward(save, arguments, None)


mamba2_inner_ranks = differentiable(over_ranks(MAMBA2), _forward, _backward, _allocate)
