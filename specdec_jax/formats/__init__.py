"""Published formats of drafters: loading and saving.

"eagle" is that of EAGLE's authors, "eagle3" that of EAGLE-3's, "zlab" that of DFlash's,
"deepspec" that of DSpark's, "specforge" what SpecForge exports for SGLang,
"speculators" what vLLM's speculators writes. The last two have words for EAGLE-3,
DFlash and DSpark.
"""

from specdec_jax.formats._block_config import BlockSaid as BlockSaid
from specdec_jax.formats._block_config import block_said_by as block_said_by
from specdec_jax.formats._block_words import is_block as is_block
from specdec_jax.formats._config import Said as Said
from specdec_jax.formats._config import said_by as said_by
from specdec_jax.formats._folder import open_drafter as open_drafter
from specdec_jax.formats._load import load_drafter as load_drafter
from specdec_jax.formats._save import save_drafter as save_drafter
from specdec_jax.formats._words import EMBEDDING as EMBEDDING
from specdec_jax.formats._words import FORMATS as FORMATS
from specdec_jax.formats._words import FUSION as FUSION
from specdec_jax.formats._words import KNOWN as KNOWN
from specdec_jax.formats._words import OFFSETS as OFFSETS
from specdec_jax.formats._words import Format as Format
