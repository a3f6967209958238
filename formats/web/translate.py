"""Translate text, line by line and sentence by sentence, with the ONNX model of this folder.

python translate.py < in > out

It needs no program of the project that trained the model, and no TensorFlow:

pip install onnxruntime sentencepiece regex sentencex
"""

import argparse
import json
import sys
import unicodedata
from pathlib import Path

import numpy as np
import onnxruntime
import regex
import sentencepiece
import sentencex

FOLDER = Path(__file__).resolve().parent


class Translator:
    """The model of a folder."""

    def __init__(self, folder=FOLDER):
        settings = json.loads((folder / "model.json").read_text("utf-8"))
        self.search, self.sides = settings["search"], (settings["source"], settings["target"])
        self.language = settings["languages"][0]
        self.patterns = {
            name: regex.compile(pattern, regex.MULTILINE)
            for name, pattern in settings["normalize"].items()
        }
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the operations are small: more threads only wait
        names = "encoder.onnx", "step.onnx"
        self.encoder, self.step = (
            onnxruntime.InferenceSession(folder / name, options) for name in names
        )
        self.word_ids = {word: i for i, word in enumerate(self.sides[0]["tokens"])}
        if self.sides[0]["kind"] == "subwords":
            self.processors = [
                sentencepiece.SentencePieceProcessor(model_file=str(folder / side["file"]))
                for side in self.sides
            ]

    def translate_line(self, line, beam=None) -> str:
        """Return the translations of the sentences of a line."""
        result = ""
        for piece in sentencex.segment(self.language, regex.sub(r"\s", " ", line)):
            sentence = piece.rstrip()
            result += self.translate(sentence, beam)[0] + piece[len(sentence) :]
        return result.strip()

    def translate(self, sentence, beam=None) -> tuple[str, float]:
        """Return the translation, and its log-probability / length penalty."""
        tokens = self.encode(self.normalize(sentence))
        if not tokens:
            return "", 0.0
        ids = tokens[: self.search["max_input_tokens"] - 1] + [self.search["end"]]
        found, score = self.beam_search(ids, beam or self.search["beam"])
        return self.normalize(regex.sub("[\r\n]", " ", self.decode(found))), score

    def normalize(self, text) -> str:
        """Return text in which all that looks equal is equal."""
        patterns = self.patterns
        text = patterns["invisible"].sub("", text)
        text = patterns["unjoined"].sub(lambda m: patterns["joiners"].sub("", m[0]), text)
        return unicodedata.normalize("NFC", patterns["loose"].sub(r"\1", text))

    def encode(self, text) -> list[int]:
        source = self.sides[0]
        if source["kind"] == "subwords":
            return self.processors[0].encode(text)
        words = regex.sub(r"[^\s\p{Latin}']", "", text).split()
        return [self.word_ids.get(word, source["unknown"]) for word in words]

    def decode(self, ids) -> str:
        target = self.sides[1]
        if target["kind"] == "subwords":
            return self.processors[1].decode(ids)
        return " ".join(target["tokens"][i] for i in ids)

    def beam_search(self, ids, beam) -> tuple[list[int], float]:
        """Return the best sentence for source ids, among `beam` at a time, and its score."""
        search = self.search
        alpha = search["alpha"] if beam > 1 else 0  # greedy search stops at the first end
        limit = len(ids) * search["max_output"]["factor"] // 10 + search["max_output"]["extra"]
        count = min(2 * beam, len(self.sides[1]["tokens"]))

        def penalty(length):
            return ((5 + length) / 6) ** alpha

        x = np.int32([ids + [0] * (search["pad_to"] - len(ids))])
        names = [output.name for output in self.encoder.get_outputs()]
        tensors = dict(zip(names, self.encoder.run(None, {"x": x}), strict=True))
        names = [output.name for output in self.step.get_outputs()]
        live, scores, parents = [[]], np.float32([0]), [0]  # not ended, the best first
        finished = []  # (score, ids) of those that ended, the best first
        for length in range(1, limit + 1):
            newest = [tokens[-1] if tokens else search["start"] for tokens in live]
            feeds = tensors | dict(
                ids=np.int32(newest), parents=np.int32(parents), count=np.int32([count])
            )
            outputs = dict(zip(names, self.step.run(None, feeds), strict=True))
            tensors |= {n.removeprefix("next_"): v for n, v in outputs.items() if "next_" in n}
            totals = (outputs["scores"] + scores[:, None]).ravel()
            continued = []
            for rank, i in enumerate(np.argsort(-totals, kind="stable")[: 2 * beam]):
                parent, token = i // count, int(outputs["tokens"].flat[i])
                tokens = live[parent] + [token]
                if token != search["end"] and length < limit:
                    continued.append((tokens, totals[i], parent))
                elif rank < beam:  # a worse one ends too early to be good
                    finished.append((totals[i] / np.float32(penalty(length)), tokens))
            finished = sorted(finished, key=lambda pair: -pair[0])[:beam]
            if not continued:
                break
            live, scores, parents = zip(*continued[:beam], strict=True)
            scores = np.float32(scores)
            # Log-probabilities only fall, and no penalty is larger than that of the longest one.
            if finished and scores[0] / penalty(limit) <= finished[0][0]:
                break
        score, tokens = finished[0]
        return tokens[:-1] if tokens[-1] == search["end"] else tokens, float(score)


def main():
    """Translate the lines of standard input."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--beam", type=int, help="hypotheses per sentence; 1 is greedy search")
    args = parser.parse_args()
    translator = Translator()
    sys.stdin.reconfigure(encoding="utf-8", newline="\n")
    sys.stdout.reconfigure(encoding="utf-8")
    try:
        for line in sys.stdin:
            print(translator.translate_line(line, args.beam), flush=True)
    except UnicodeDecodeError:
        parser.error("standard input: not text in UTF-8. Convert it")


if __name__ == "__main__":
    main()
