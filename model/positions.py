"""Position encodings: how a Transformer learns the order of its tokens.

Attention alone does not see the order (docs/walkthrough.md, section 7). Each subclass of
`Positions` is a way to add it. It overrides one or two of its hooks:

    embed            changes the embedded tokens, before the first block
    rotate           changes Q and K             \\
    change_scores    changes the scores           }  in each self-attention
    change_outputs   changes the weighted values /

The first kind is called absolute, the second relative. Here are the encodings of the 2017 code and
of the paper, which are absolute. variants/positions.py has the others.

`hparams.py` explains the letters in shapes. In self-attention, the queries are the last T_q of the
T_k positions: all of them in training, and the newest one in decoding.
"""

import keras

from modules import Embedding, PositionalEncoding


class Positions(keras.layers.Layer):
    """No positions. The base class of the others: its hooks return their inputs.

    With `causality`, a position sees only those before it, as in the decoder.
    """

    shared = False  # whether all blocks use the parameters of the first one

    def __init__(self, maxlen, hidden_units, num_heads, causality=False, **kwargs):
        super().__init__(**kwargs)
        self.maxlen = maxlen
        self.num_units = hidden_units
        self.num_heads = num_heads
        self.head_units = hidden_units // num_heads
        self.causality = causality

    def initial_state(self, N):
        """Return what `embed` needs to know of the tokens so far, before the first one."""
        return ()

    def embed(self, tokens, positions, state):
        """Encode the positions, (T,) int32, of consecutive embedded tokens, (N, T, C).

        Returns the tokens and the next state. `state` is what `initial_state` or the call for the
        tokens before them returned.
        """
        return tokens, state

    def prepare(self, T_q, T_k):
        """Return an object with the hooks below, for these lengths.

        It is called once for all blocks that share the layer.
        """
        return self

    def rotate(self, Q, K):
        """Change the queries (N, h, T_q, d) and the keys (N, h, T_k, d)."""
        return Q, K

    def change_scores(self, scores, Q, K):
        """Change the scores (N, h, T_q, T_k), which are Q K^T / sqrt(d)."""
        return scores

    def change_outputs(self, outputs, weights):
        """Change the weighted values (N, h, T_q, d); `weights` are (N, h, T_q, T_k)."""
        return outputs


class LearnedPositions(Positions):
    """x + t, with a learned vector t for each of `maxlen` positions (2017 code, BERT, GPT)."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        dtype = self.dtype_policy
        self.table = Embedding(
            self.maxlen, self.num_units, zero_pad=False, scale=False, dtype=dtype
        )

    def build(self, _):
        self.table.build(None)

    def embed(self, tokens, positions, state):
        return tokens + self.vectors(positions), state

    def vectors(self, positions):
        """(T,) int32 -> (1, T, C)."""
        return self.table(positions[None])


class SinusoidalPositions(Positions):
    """x + t, with t of sines and cosines, as the 2017 code writes the formula."""

    paired = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.encoding = PositionalEncoding(
            self.num_units, self.paired, zero_pad=False, scale=False, dtype=self.dtype_policy
        )

    def embed(self, tokens, positions, state):
        return tokens + self.encoding(positions[None]), state


class PairedSinusoidalPositions(SinusoidalPositions):
    """x + t, with a sine and a cosine for each frequency (paper, section 3.5)."""

    paired = True
