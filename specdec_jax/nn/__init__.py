"""Building blocks: norms, rotary positions, attention over prefix and block, MLP, the
decoder.
"""

from specdec_jax.nn._attention import attention as attention
from specdec_jax.nn._block_drafter import BlockDrafter as BlockDrafter
from specdec_jax.nn._blocks import block_states as block_states
from specdec_jax.nn._chunked import chunked_sum as chunked_sum
from specdec_jax.nn._cross_entropy import cross_entropy as cross_entropy
from specdec_jax.nn._decoder import Attend as Attend
from specdec_jax.nn._decoder import Decoder as Decoder
from specdec_jax.nn._decoder import DecoderConfig as DecoderConfig
from specdec_jax.nn._decoder import Tap as Tap
from specdec_jax.nn._eagle import Eagle3Config as Eagle3Config
from specdec_jax.nn._eagle import Eagle3Head as Eagle3Head
from specdec_jax.nn._eagle import EagleConfig as EagleConfig
from specdec_jax.nn._eagle import EagleHead as EagleHead
from specdec_jax.nn._experts import Experts as Experts
from specdec_jax.nn._experts import ExpertsConfig as ExpertsConfig
from specdec_jax.nn._head_parts import TOKENS as TOKENS
from specdec_jax.nn._injected import InjectedBody as InjectedBody
from specdec_jax.nn._injected import InjectedConfig as InjectedConfig
from specdec_jax.nn._injected import Layout as Layout
from specdec_jax.nn._layers import MLP as MLP
from specdec_jax.nn._layers import Linear as Linear
from specdec_jax.nn._layers import Llama3Stretch as Llama3Stretch
from specdec_jax.nn._layers import RMSNorm as RMSNorm
from specdec_jax.nn._layers import RoPE as RoPE
from specdec_jax.nn._markov import MarkovConfig as MarkovConfig
from specdec_jax.nn._product import product as product
from specdec_jax.nn._rope import rope_keys as rope_keys
from specdec_jax.nn._rope import rope_of as rope_of
from specdec_jax.nn._unroll import Rows as Rows
from specdec_jax.nn._unroll import next_states as next_states
