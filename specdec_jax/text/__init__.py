"""Text in, text out: tokenizers and chat templates."""

from specdec_jax.text._chat import render_chat as render_chat
from specdec_jax.text._load import LanguageModel as LanguageModel
from specdec_jax.text._load import load as load
from specdec_jax.text._tokenizer import StreamDecoder as StreamDecoder
from specdec_jax.text._tokenizer import Tokenizer as Tokenizer
