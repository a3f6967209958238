"""Draw docs/one_head.png: one head of the model in docs/mini_model, for a complete sentence.

python docs/figures/mini_head.py
"""

import keras
import numpy as np
from style import DOCS, LARGE, SIGNED_MAP, SMALL, draw_pictures, draw_weights, make_figure

import mini

BLOCK = "encoder/num_blocks_0/multihead_attention"
WORDS = 8  # with </S>, without padding
HEAD = slice(0, 32)  # the units of the first head


def head_numbers():
    """The words (T), X (T, C), Q, K, V (T, d_k), the weights (T, T) and Z (T, d_k) of the head."""
    keras.utils.clear_session()  # Keras numbers layers from 0 again
    mini.prepare()
    mini.hp.logdir = str(DOCS / "mini_model")
    g, _ = mini.load_newest()
    W = {weight.path: weight.numpy() for weight in g.model.weights}
    x, y, _, _ = mini.create_data([mini.clean(mini.EXAMPLE)], [""])
    _, idx2de = mini.load_de_vocab()
    X = W["encoder/enc_embed/embedding/embeddings"][x[0]] * mini.hp.hidden_units**0.5
    X = (X + W["encoder/enc_pe/embedding_1/embeddings"])[:WORDS]
    names = [f"{BLOCK}/{name}" for name in ("dense", "dense_1", "dense_2")]
    Q, K, V = (np.maximum(X @ W[f"{n}/kernel"] + W[f"{n}/bias"], 0)[:, HEAD] for n in names)
    weights = keras.Model([g.x, g.y], g.attention[0])([x, y])  # (h*N, T, T)
    weights = np.array(weights)[0, :WORDS, :WORDS]
    return [idx2de[i] for i in x[0, :WORDS]], X, Q, K, V, weights, weights @ V


def draw_one_head():
    """The matrices of the head: X, then Q, K and V, the weights, and their means of the values."""
    words, X, Q, K, V, weights, Z = head_numbers()
    figure = make_figure(4.6, title="encoder, block 1, head 1")
    mosaic = [["X", "Q", "weights", "Z"], ["X", "K", "weights", "Z"], ["X", "V", "weights", "Z"]]
    axes = figure.subplot_mosaic(mosaic, width_ratios=(2, 1, 2.8, 1))
    for name, matrix in dict(X=X, Q=Q, K=K, V=V, Z=Z).items():
        scale = np.abs(matrix).max()
        axes[name].imshow(matrix / scale, cmap=SIGNED_MAP, vmin=-1, vmax=1, aspect="auto")
        axes[name].set_title(name, fontsize=LARGE)
        axes[name].set(yticks=range(WORDS), yticklabels=words if name in "XZ" else [])
        axes[name].set_xticks([0, matrix.shape[1] - 1], [1, matrix.shape[1]])
    draw_weights(axes["weights"], weights, words, words)
    axes["weights"].set_aspect("auto")
    axes["weights"].set_xlabel("weights = softmax(Q Kᵀ / √32)", fontsize=LARGE, labelpad=8)
    for (query, key), weight in np.ndenumerate(weights):
        if weight >= 0.15:
            colour = "white" if weight > 0.6 else "black"
            text = dict(ha="center", va="center", color=colour, fontsize=SMALL)
            axes["weights"].text(key, query, f"{weight:.2f}", **text)
    return figure


PICTURES = {"one_head.png": draw_one_head}

if __name__ == "__main__":
    draw_pictures(PICTURES, __doc__)
