"""Choose among the n best translations of each line by another criterion than the search's.

    python translate.py --source in --beam 10 --nbest 10 --output nbest
    python rerank.py --source in --nbest nbest --logdir logdir/en-de > out
    python rerank.py --source in --nbest nbest --method mbr > out

reverse: --logdir names a model of the reverse direction. The score of a translation grows with
the probability that the model translates it back to the source.
mbr: the translation that is most similar to the others (minimum Bayes risk), by chrF."""

import contextlib
import dataclasses
import itertools
import math
import sys

from trained_models import find_trained

from hparams import SEARCH_FLAGS, Hyperparams
from runtime.cli import parse_flags, run_script
from runtime.errors import InputError
from runtime.files import check_exists, check_outputs, is_shown, open_output
from runtime.flags import Flags, check_not_given, flag

MODEL_FLAGS = ("logdir", "best", "average_checkpoints")


@dataclasses.dataclass(frozen=True)
class RerankFlags(Flags):
    """The flags of this script."""

    source: str = flag("", "file of the sources, one sentence per line", path=True)
    nbest: str = flag("", "file that translate.py --nbest has written", path=True)
    output: str = flag("-", "file to write the best translations to; -: standard output", path=True)
    method: str = flag("reverse", "how translations are compared", choices=("reverse", "mbr"))
    weight: float = flag(
        0.5,
        "for reverse: weight of the reverse model, next to 1 for the score",
        0.0,
        1000.0,
        needs=dict(method="reverse"),
        remedy="Leave it out",
    )

    def __post_init__(self):
        for name in ("source", "nbest"):
            if not getattr(self, name):
                raise InputError(f"{name} is missing. Give --source and --nbest")
        super().__post_init__()
        check_outputs(self, outputs=["output"], inputs=["source", "nbest"])


def read_nbest(path, num_lines) -> list[list[tuple[str, float]]]:
    """Read lists of translations, best first: for each line pairs of text and score."""
    from text import normalize, read_lines  # here, as in `settle`

    lists = [[] for _ in range(num_lines)]
    for row, line in enumerate(read_lines(path, "Check the path, which --nbest names"), 1):
        number, _, rest = line.partition(" ||| ")
        text, separator, score = rest.rpartition(" ||| ")
        try:
            value = float(score)
        except ValueError:
            value = math.nan
        if not (separator and number.isdecimal() and math.isfinite(value)):
            raise InputError(
                f"{path}:{row}: is not `number ||| translation ||| score`. Write the file with"
                " translate.py and --nbest 2 or more"
            )
        if len(number) > 9 or int(number) >= num_lines:
            raise InputError(
                f"{path}:{row}: is of line {number}, but the source has {num_lines} lines, counted"
                " from 0. Give the --source that was translated"
            )
        lists[int(number)].append((normalize(text), value))
    for number, best in enumerate(lists):
        if not best:
            raise InputError(
                f"{path}: has no translation of line {number}. Give the --source that was"
                " translated"
            )
    return lists


def settle(flags):
    """Find the files that the flags name, before TensorFlow is loaded; see `main`."""
    # Here, since `parse_flags` has a message for an environment without packages.
    from text import read_lines

    options, flags = RerankFlags.separate(flags)
    check_not_given(flags, SEARCH_FLAGS, "has no effect: nothing is translated")
    if options.method == "mbr":
        check_not_given(flags, MODEL_FLAGS, "has no effect: mbr needs no model")
    for name in ("source", "nbest"):
        check_exists(getattr(options, name), f"Check the path, which --{name} names")
    if options.method == "reverse" and "logdir" not in flags:
        raise InputError(
            "method reverse needs a model of the other direction. Give its folder with --logdir,"
            " or use --method mbr"
        )
    models = find_trained(flags) if options.method == "reverse" else []
    lines = list(read_lines(options.source, "Check the path, which --source names"))
    return options, models, lines, read_nbest(options.nbest, len(lines))


if __name__ == "__main__":  # before the slow imports, see runtime/cli.py
    settled = parse_flags(__doc__, settle, Hyperparams, RerankFlags, reads_model=True)

import sacrebleu
from tqdm import tqdm

from inference import load_model
from score import Scorer
from text import blocks

SCORED_LINES = 100  # lines whose lists are scored together


def reverse_scores(lines, lists, scorer, weight) -> list[list[float]]:
    """Add the log-probability of each source, given its translations, to their scores.

    It is a mean per token of the source.

    Args:
      lines: the sources, list of str.
      lists: what `read_nbest` returned.
      scorer: `Scorer` of the reverse direction.
    """
    counts = [len(best) for best in lists]
    texts = [text for best in lists for text, _ in best]
    sources = [line for line, count in zip(lines, counts, strict=True) for _ in range(count)]
    reverse = iter(scorer(texts, sources))

    def score_of(score):
        back = next(reverse)
        # A side that is empty or too long for the model has no score.
        return score + weight * back.logp / back.num_tokens if back.num_tokens else -math.inf

    return [[score_of(score) for _, score in best] for best in lists]


def mbr_scores(best) -> list[float]:
    """Compute how similar each translation of a line is to all of them.

    The sum of the chrF against each of them, weighted by its probability in proportion to
    exp(score) (Kumar and Byrne 2004; chrF: Popović 2015).

    Args:
      best: list of pairs of text and score.
    """
    chrf, top = sacrebleu.CHRF(), max(score for _, score in best)
    weights = [math.exp(score - top) for _, score in best]
    return [
        sum(
            weight * chrf.sentence_score(text, [other]).score
            for (other, _), weight in zip(best, weights, strict=True)
        )
        for text, _ in best
    ]


def main(options, models, lines, lists):
    """Write the best translation of each line.

    Args:
      options: RerankFlags.
      models: list of `Trained`, none with method mbr.
      lines: the sources.
      lists: what `read_nbest` returned.
    """
    if options.method == "mbr":
        scores = map(mbr_scores, lists)
    else:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for translations only
            loaded = load_model(models)
        scorer = Scorer(loaded)
        scores = itertools.chain.from_iterable(
            reverse_scores(*zip(*block, strict=True), scorer, options.weight)
            for block in blocks(zip(lines, lists, strict=True), SCORED_LINES)
        )
    changed = 0
    no_bar = is_shown(options.output)
    bar = tqdm(
        desc="reranking", total=len(lines), disable=no_bar, leave=False, delay=1, unit=" lines"
    )
    with open_output(options.output) as file, bar:
        for best, own in zip(lists, scores, strict=True):
            bar.update()
            index = max(range(len(best)), key=own.__getitem__)
            changed += best[index][0] != best[0][0]
            file.write(f"{best[index][0]}\n".encode())
    print(f"{changed} of {len(lines)} translations have changed", file=sys.stderr)
    if options.method == "reverse" and scorer.truncated:
        print(
            f"{scorer.truncated} translations have no score, since they or their source have more"
            f" than {loaded.hp.max_input_tokens - 1} {loaded.vocabs[0].token_name}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    run_script(main, *settled)
