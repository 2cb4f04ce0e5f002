"""Files: models by name, GGUF."""

from specdec_jax.io._fetch import MODELS as MODELS
from specdec_jax.io._fetch import Source as Source
from specdec_jax.io._fetch import cache_folder as cache_folder
from specdec_jax.io._fetch import fetch as fetch
from specdec_jax.io._gguf import GGUF as GGUF
from specdec_jax.io._gguf import TensorInfo as TensorInfo
