"""Files: models by name, GGUF, Hugging Face folders, checkpoints."""

from specdec_jax.io._checkpoint import load_params as load_params
from specdec_jax.io._checkpoint import save_params as save_params
from specdec_jax.io._fetch import MODELS as MODELS
from specdec_jax.io._fetch import Part as Part
from specdec_jax.io._fetch import Source as Source
from specdec_jax.io._fetch import cache_folder as cache_folder
from specdec_jax.io._fetch import fetch as fetch
from specdec_jax.io._folder import Folder as Folder
from specdec_jax.io._folder import StoredTensor as StoredTensor
from specdec_jax.io._gguf import GGUF as GGUF
from specdec_jax.io._gguf import TensorInfo as TensorInfo
from specdec_jax.io._keys import Keys as Keys
from specdec_jax.io._names import LAYER_NAMES as LAYER_NAMES
from specdec_jax.io._pickled import open_folder as open_folder
from specdec_jax.io._read import ParamPath as ParamPath
from specdec_jax.io._read import Stored as Stored
from specdec_jax.io._read import read_params as read_params
