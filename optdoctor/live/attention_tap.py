"""How sharp attention is, where a run asks for it: `scaled_dot_product_attention` is wrapped.

The function of `torch.nn.functional` is replaced while such a run lives: it is what torch's own
layers, Transformers with `sdpa` and most loops call by this name. Attention written out with a
softmax, as Transformers' `eager`, other kernels, compiled regions and modules that imported the
function by itself before are not seen. Of the trained calls of a sampled update a few heads and
queries are computed again, without a gradient, from what the function was given.
"""

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

NAME = "scaled_dot_product_attention"
EXAMPLES, HEADS, QUERIES = 2, 8, 16
"""Most of each that are looked at in one call."""
ELEMENTS = 2**22
"""Of the keys that are looked at, unless one head has more: 16 MiB in float32."""
LEAST_KEYS = 8
"""Keys that a query must be able to see for its entropy to count: that of fewer is small anyway."""
MASKED = -1e3
"""A number that a mask adds to a logit, below which it means that the key is not seen."""


class Call(NamedTuple):
    """What the function was called with."""

    query: Tensor
    key: Tensor
    mask: Tensor | None = None
    is_causal: bool = False
    scale: float | None = None
    shares_keys: bool = False
    """Whether several heads of queries have one of keys (`enable_gqa`)."""


class Tap(Protocol):
    """Who wants to see it."""

    def attended(self, call: Call) -> None:
        """Attention was computed, in a pass that trains."""


_TAPS: "weakref.WeakSet[Tap]" = weakref.WeakSet()
_WRAPPED: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
"""(the function, what stands in its place) while somebody listens."""


def listen(tap: Tap) -> None:
    """Begins to tell `tap` of every call; it is held weakly."""
    _TAPS.add(tap)
    if not _WRAPPED:
        inner = getattr(functional, NAME)
        _WRAPPED.append((inner, _tapped(inner)))
        setattr(functional, NAME, _WRAPPED[0][1])


def leave(tap: Tap) -> None:
    """Ends it; the last one takes the wrapper off, unless somebody has wrapped it meanwhile."""
    _TAPS.discard(tap)
    if not _TAPS and _WRAPPED and getattr(functional, NAME) is _WRAPPED[0][1]:
        setattr(functional, NAME, _WRAPPED.pop()[0])


def _tapped(inner: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(inner)
    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **more: Any,
    ) -> Any:
        result = inner(query, key, value, attn_mask, dropout_p, is_causal, **more)
        # A compiler must find nothing of ours: it would break its graph here, or refuse.
        if torch.compiler.is_compiling() or not _TAPS:
            return result
        call = Call(
            query, key, attn_mask, is_causal, more.get("scale"), bool(more.get("enable_gqa"))
        )
        if _is_readable(call):
            for tap in list(_TAPS):
                tap.attended(call)
        return result

    return attention


def _is_readable(call: Call) -> bool:
    """Whether these are plain tensors of a pass that trains, which can be looked at now."""
    given = [call.query, call.key] + ([] if call.mask is None else [call.mask])
    if not torch.is_grad_enabled() or any(type(t) not in (Tensor, nn.Parameter) for t in given):
        return False
    if not (call.query.requires_grad or call.key.requires_grad):
        return False
    if any(t.is_meta or t.is_nested for t in given) or not call.query.is_floating_point():
        return False
    if (
        torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
    ):
        return False
    return not (call.query.is_cuda and torch.cuda.is_current_stream_capturing())


class Attention:
    """The numbers of one update, kept on the device."""

    def __init__(self) -> None:
        self._logit: Tensor | None = None
        self._entropy: Tensor | None = None

    def add(self, call: Call) -> None:
        """Looks at one call."""
        measured = measure(call)
        if measured is None:
            return
        logit, entropy = measured
        kept = self._logit
        self._logit = logit if kept is None else torch.maximum(kept, logit.to(kept.device))
        if entropy is not None:
            least = self._entropy
            entropy = entropy if least is None else entropy.to(least.device)
            self._entropy = entropy if least is None else torch.minimum(least, entropy)

    def taken(self) -> dict[str, Tensor]:
        """{channel: number} of the calls since it was taken last."""
        logit, entropy = self._logit, self._entropy
        self._logit = self._entropy = None
        values = {} if logit is None else {"attention_logit_max": logit}
        if entropy is not None:  # infinite where no query saw keys enough
            values["attention_entropy"] = torch.where(entropy.isinf(), torch.nan, entropy)
        return values


def measure(call: Call) -> tuple[Tensor, Tensor | None] | None:
    """(largest size of a logit among keys that are seen, mean entropy in nats), as scalars.

    A logit is query times key times scale, before any mask. The entropy is that of the softmax over
    keys, mask included, in the mean of the queries that see at least `LEAST_KEYS` keys; infinite if
    there are none, None if there cannot be any. None altogether for shapes that do not fit.
    """
    with torch.no_grad():
        query, key = call.query.detach(), call.key.detach()
        if query.dim() < 2 or key.dim() != query.dim() or 0 in (*query.shape, *key.shape):
            return None
        *lead, num_queries, width = query.shape
        num_keys = key.shape[-2]
        mask = None
        if call.mask is not None:
            mask = call.mask.detach().expand(*lead, num_queries, num_keys)
        if call.shares_keys and len(lead) > 0 and query.shape[-3] != key.shape[-3]:
            group = query.shape[-3] // key.shape[-3]  # of its queries' heads, one for each of keys
            query = query[..., ::group, :, :]
            mask = None if mask is None else mask[..., ::group, :, :]
        if query.shape[:-2] != key.shape[:-2]:
            return None
        heads, queries = _chosen(query, num_keys)
        query, key = query[(*heads, queries)].float(), key[heads].float()
        scale = width**-0.5 if call.scale is None else call.scale
        with torch.autocast(query.device.type, enabled=False):
            logits = query @ key.transpose(-1, -2) * scale
        seen = torch.ones_like(logits, dtype=torch.bool)
        if call.is_causal:
            column = torch.arange(num_keys, device=logits.device)
            row = torch.arange(num_queries, device=logits.device)[queries]
            seen = seen & (column <= row[:, None])
        scores = logits
        if mask is not None:
            part = mask[(*heads, queries)]
            seen = seen & (part if part.dtype is torch.bool else part > MASKED)
            scores = scores if part.dtype is torch.bool else scores + part.float()
        largest = logits.abs().masked_fill(~seen, 0).amax()
        return largest, _entropy(scores, seen) if num_keys >= LEAST_KEYS else None


def _chosen(query: Tensor, num_keys: int) -> tuple[tuple[slice, ...], slice]:
    """(of each leading dimension, of the queries) what is looked at: views, evenly spaced."""
    *lead, num_queries, width = query.shape
    examples = [slice(0, EXAMPLES)] * (len(lead) - 1)
    per_head = num_keys * width
    for size in lead[:-1]:
        per_head *= min(size, EXAMPLES)
    num_heads = max(min(HEADS, ELEMENTS // per_head), 1)
    heads = [slice(None, None, -(-lead[-1] // num_heads))] if lead else []
    first = min(LEAST_KEYS, num_queries) - 1  # a causal mask lets it see as many keys
    spacing = -(-(num_queries - first) // QUERIES)
    return (*examples, *heads), slice(first, None, spacing)


def _entropy(scores: Tensor, seen: Tensor) -> Tensor:
    logs = torch.log_softmax(scores.masked_fill(~seen, -torch.inf), dim=-1)
    entropy = -(logs.exp() * logs.masked_fill(~seen, 0)).sum(dim=-1)
    counts = seen.sum(dim=-1) >= LEAST_KEYS
    mean = entropy.masked_fill(~counts, 0).sum() / counts.sum()
    return torch.where(counts.any(), mean, torch.inf)
