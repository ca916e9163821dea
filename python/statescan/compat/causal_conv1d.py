"""Drop-in for `causal_conv1d` 1.6."""

from .. import functions

__all__ = ["causal_conv1d_fn", "causal_conv1d_update"]


def causal_conv1d_fn(
    x,
    weight,
    bias=None,
    seq_idx=None,
    initial_states=None,
    return_final_states=False,
    final_states_out=None,
    activation=None,
    *,
    context=None,
):
    """The convolution; shapes as in `statescan.causal_conv1d`.

    `final_states_out`, a PyTorch tensor of (batch, dim, width - 1) and any real type, receives the final states and is returned
    in their place. It is left alone without `return_final_states`. `context`, which the origin has not, is that of
    `statescan.distributed`.
    """
    y, final_states = functions.causal_conv1d(
        x,
        weight,
        bias,
        activation=activation,
        initial_states=initial_states,
        seq_idx=seq_idx,
        return_final_states=True,
        context=context,
    )
    if not return_final_states:
        return y
    return y, final_states if final_states_out is None else final_states_out.copy_(final_states)


def causal_conv1d_update(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None):
    """One or a few steps; shapes as in `statescan.causal_conv1d_update`."""
    return functions.causal_conv1d_update(
        x,
        conv_state,
        weight,
        bias,
        activation=activation,
        cache_seqlens=cache_seqlens,
        conv_state_indices=conv_state_indices,
    )
