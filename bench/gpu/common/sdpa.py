"""torch's scaled_dot_product_attention by each of its backends, as a peer."""

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
"""Of FP16; FP32 has "efficient" alone. A backend that does not take a problem raises."""


def sdpa(backend, q, k, v, **options):
    """q, k, v [batch, heads, tokens, size]."""
    with sdpa_kernel(BACKENDS[backend]):
        return scaled_dot_product_attention(q, k, v, **options)
