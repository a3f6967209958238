"""Recurrent encoder-decoders: the models before the Transformer.

    e_t = f(x_t, e_(t-1))              the encoder reads the source, token by token
    C_t = g(e_1, ..., e_n, d_(t-1))    the context of target position t
    d_t = f(y_(t-1), C_t, d_(t-1))     the decoder
    y_t = softmax(W d_t + b)

Without attention, the context is the encoder's last state for every t. With attention, it is the
sum of alpha_i e_i, where alpha = softmax(s) and s_i = score(e_i, d_(t-1)).

f is a cell: the plain tanh recurrence, a GRU or an LSTM. docs/walkthrough.md, section 13, explains
them, and `hparams.py` the letters in shapes. `beam` is the number of hypotheses per sentence.
"""

from typing import NamedTuple

import keras
import tensorflow as tf
from keras import ops

from hparams import ATTENTION_SCORES
from model.attention import add_parameters, attention_scores, prepare_keys, scores_to_weights
from modules import Dropout, Embedding, Linear, TranslationModel, shift_right
from text.ids import PAD

# The cells over all tokens of a sentence; on a GPU, the last two use cuDNN.
LAYERS = dict(tanh=keras.layers.SimpleRNN, gru=keras.layers.GRU, lstm=keras.layers.LSTM)


class Memory(NamedTuple):
    """The encoded sources, as the decoder reads them."""

    states: tf.Tensor  # (N, T, C), the encoder's states e_i
    keys: tf.Tensor  # (N, 1, T, C), e_i as keys of the attention function; one head
    masks: tf.Tensor  # (N, T) bool, True where the source has a token
    last: list  # of (N, C), the state after the last token read; an LSTM has two


class RecurrentEncoder(keras.layers.Layer):
    """Read embedded tokens, with half of the units from right to left: (N, T, C) -> (N, T, C)."""

    def __init__(self, num_units, cell, **kwargs):
        super().__init__(**kwargs)
        self.directions = [
            LAYERS[cell](
                num_units // 2,
                return_sequences=True,
                return_state=True,
                go_backwards=backwards,
                dtype=self.dtype_policy,
            )
            for backwards in (False, True)
        ]

    def build(self, input_shape):
        for layer in self.directions:
            layer.build(input_shape)

    def call(self, inputs, token_masks):
        """Encode (N, T, C), and return also the states after the last token."""
        outputs = [layer(inputs, mask=token_masks) for layer in self.directions]
        (forward, *forward_last), (backward, *backward_last) = outputs  # (N, T, C/2), (N, C/2)
        states = ops.concatenate([forward, ops.flip(backward, axis=1)], axis=-1)  # (N, T, C)
        pairs = zip(forward_last, backward_last, strict=True)  # an LSTM has two
        return states, [ops.concatenate(pair, axis=-1) for pair in pairs]  # of (N, C)


class RecurrentDecoder(keras.layers.Layer):
    """One step of the decoder; `attention_score` is None for a model without attention."""

    def __init__(self, num_units, cell, attention_score, **kwargs):
        super().__init__(**kwargs)
        self.num_units = num_units
        self.cell = LAYERS[cell](num_units, dtype=self.dtype_policy).cell
        self.choice = ATTENTION_SCORES.get(attention_score)

    def build(self, input_shape):
        self.cell.build((None, 2 * self.num_units))
        self.score_parameters = {}
        if self.choice:
            self.score_parameters = add_parameters(self, self.choice, 1, self.num_units)

    def call(self, inputs, states, memory, beam=-1):
        """Compute d_t, (N * beam, C), and the list of new states.

        `inputs` are the embedded tokens y_(t-1), (N * beam, C), and `states` is d_(t-1), a list of
        (N * beam, C); an LSTM has two. Consecutive rows may be hypotheses of one of the N sentences
        of `memory`. `beam` is -1 if only the graph knows it.
        """
        context, _ = self.context(states[0], memory, beam)
        return self.cell(ops.concatenate([inputs, context], axis=-1), states)

    def context(self, d, memory, beam=-1):
        """Compute C_t, (N * beam, C), and the attention weights, (N, 1, beam, T) or None."""
        N, C = ops.shape(memory.states)[0], self.num_units
        if self.choice is None:
            # A small batch has no rows for some replicas: N may be 0.
            return ops.repeat(memory.last[0], ops.shape(d)[0] // ops.maximum(N, 1), axis=0), None
        # One head; the hypotheses are query positions. Scores and weights are (N, 1, beam, T).
        Q = ops.reshape(d, (N, 1, beam, C))
        scores = attention_scores(self.choice, Q, memory.keys, self.score_parameters)
        mask = memory.masks[:, None, None]  # (N, 1, 1, T)
        weights = scores_to_weights(scores, mask, softmax=self.choice.softmax)
        context = ops.matmul(weights, memory.states[:, None])  # (N, 1, beam, C)
        return ops.reshape(context, (-1, C)), weights


@keras.saving.register_keras_serializable("transformer")
class RecurrentModel(TranslationModel):
    """Source ids and target ids (N, T) int32 -> logits of the targets (N, T, vocab).

    The methods are those of `Transformer`. The decoder starts with the encoder's last state
    (Sutskever et al. 2014).
    """

    def __init__(self, hp, source_vocab, target_vocab, **kwargs):
        super().__init__(hp, source_vocab, target_vocab, **kwargs)
        C, dtype = hp.hidden_units, self.dtype_policy.name
        self.source_tokens = Embedding(
            source_vocab, C, scale=False, pad_logit=hp.design.pad_logit, dtype=dtype
        )
        self.target_tokens = self.source_tokens
        if not hp.tied_embeddings:
            self.target_tokens = Embedding(target_vocab, C, scale=False, dtype=dtype)
        self.encoder = RecurrentEncoder(C, hp.cell, dtype=dtype)
        attention_score = hp.attention_score if hp.has_attention else None
        self.decoder = RecurrentDecoder(C, hp.cell, attention_score, dtype=dtype)
        self.dropout = Dropout(hp.dropout_rate, dtype=dtype)
        self.output_dropout = Dropout(hp.dropout_rate, dtype=dtype)
        self.output_layer = None if hp.tied_embeddings else Linear(target_vocab, dtype=dtype)
        self.build()

    def build(self, *_):
        if self.built:
            return
        ids, units = (None, None), (None, None, self.hp.hidden_units)
        for layer in (self.source_tokens, self.target_tokens):
            if not layer.built:
                layer.build(ids)
        self.encoder.build(units)
        self.decoder.build((None, self.hp.hidden_units))
        if not self.hp.tied_embeddings:
            self.output_layer.build(units)

    def call(self, x, y, training=None, istarget=None):
        """Compute the logits of `y`, given `x` and the targets before each position."""
        memory = self.encode_memory(x, training)
        dec = self.decode(shift_right(y), memory, training)  # (N, T, C)
        if istarget is not None:
            dec = tf.boolean_mask(dec, istarget)  # (M, C)
        return self.to_logits(dec)  # (N, T, vocab), or (M, vocab)

    def encode_memory(self, x, training=None):
        """Encode source ids (N, T) as `Memory`."""
        enc = self.dropout(self.source_tokens(x), training=training)  # (N, T, C)
        states, last = self.encoder(enc, x != PAD)
        keys = prepare_keys(states[:, None], self.decoder.score_parameters)  # (N, 1, T, C)
        return Memory(states, keys, x != PAD, last)

    def decode(self, decoder_inputs, memory, training=None):
        """Compute the states d of all target positions: (N, T) -> (N, T, C)."""
        dec = self.dropout(self.target_tokens(decoder_inputs), training=training)

        def step(states, inputs):
            return self.decoder(inputs, states, memory, beam=1)[1]

        # tf: keras.ops.scan builds its body for each call.
        states = tf.scan(step, tf.transpose(dec, [1, 0, 2]), memory.last)  # of (T, N, C)
        dec = tf.transpose(states[0], [1, 0, 2])  # (N, T, C)
        return self.output_dropout(dec, training=training)

    def to_logits(self, dec):
        """Compute logits from the decoder's states: (..., C) -> (..., vocab)."""
        if self.hp.tied_embeddings:
            return self.target_tokens.to_logits(dec)
        return self.output_layer(dec)

    def initial_cache(self, memory, beam=1):
        """Return the decoder's first states, list of (N * beam, C)."""
        return [ops.repeat(state, beam, axis=0) for state in memory.last]

    def decode_step(self, ids, cache, memory):
        """Compute the logits of the next token; see `search.StepModel`."""
        # A loop forgets the static shapes.
        states = [ops.reshape(state, (-1, self.hp.hidden_units)) for state in cache]
        dec, states = self.decoder(self.target_tokens(ids), states, memory)
        return self.to_logits(dec), states

    def cross_attention(self, x, y):
        """Compute the attention weights of all target positions, (N, 1, T_y, T_x)."""
        memory = self.encode_memory(x)
        dec = self.decode(shift_right(y), memory)  # (N, T_y, C)
        before = ops.concatenate([memory.last[0][:, None], dec[:, :-1]], axis=1)  # d_(t-1)
        _, weights = self.decoder.context(ops.reshape(before, (-1, self.hp.hidden_units)), memory)
        return weights
