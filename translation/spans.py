"""Find the parts of a sentence that are the same in each language.

A token stays as it is if it contains what no word has: an address, a path, a name of a program.
Code, as {name} or %d, also stays within a token of words.
"""

import regex

# Possessive quantifiers keep the time linear. Scripts without spaces between words:
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
WIDE = r"\u3000-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
SPACED_LETTER = regex.compile(rf"[[\p{{L}}\p{{M}}\p{{N}}]--[{UNSPACED}]]", regex.V1)  # or a digit
LETTER = rf"[\p{{L}}--[{UNSPACED}]]"
CODE_PATTERN = rf"""(?:
      [$%\#]?\{{(?:[^{{}}]++|\{{[^{{}}]*+\}})*+\}}           # {{}}, with one more pair inside
    | \[\[[^\[\]]*+\]\] | \]\((?=[^()\s]*[/.:\#])[^()\s]*+\)     # ](address) of Markdown
    | <[^<>\s]++(?:\s[^<>=%]*+[=%][^<>]*+|\s*+/?)>          # a tag; <% %>
    | &(?:\#\w++|\w\w++);
    | %{LETTER}\w++%(?![\w%]) | %%
    | (?<!\p{{Nd}})(?:%(?:\([^()\s]*+\))?[^\s\p{{L}}%]{{0,9}}[@\p{{Nd}}A-Za-z][A-Za-z]*+)++
    | \$(?:\w*+\([^()]*+\) | [_{LETTER}][\w--[{UNSPACED}]]*+ | \p{{Nd}}(?![.,]?\p{{Nd}}))
    | (?=[\p{{Extended_Pictographic}}\p{{RI}}]|[0-9\#*]\ufe0f?\u20e3)\X
)"""
TOKEN = regex.compile(rf"(?:{CODE_PATTERN}|[^\s{UNSPACED}{WIDE}])++", regex.V1 | regex.X)
CODE = regex.compile(CODE_PATTERN, regex.V1 | regex.X)
WITHIN_COMPOUND = r"(?!\S{0,50}-\p{L}*\p{Ll})"  # CO2, but not CO2-Steuer
WORD = regex.compile(r"[\p{L}\p{M}\p{N}]")
UNLIKE_WORDS = regex.compile(
    rf"""[\\_=] | (?<!<)<(?!<) | @\w | \p{{L}}[$%]\p{{L}} | \(\) | :: | -> | (?<!\S)--\w
    | /\S*/ | (?<!\S)[~.]*+/[\w.] | www\.\w | \w\w(?:\.\w\w+){{2}}  # paths, addresses
    | (?:\p{{L}}|\p{{Lu}}-)\p{{Nd}}{WITHIN_COMPOUND}""",
    regex.V1 | regex.X,
)
OPENING, CLOSING = "\"'“”„‘’«»‹›([¡¿`*", ".,;:!?…\"'”“»«›‹’‘)]`*"
OPENERS = {")": "(", "]": "[", '"': '"', "'": "'"}
HTML_TAG = regex.compile(r"\ue000(/?)(\w*+)\ue001")  # as server/html_text.py writes it
NUMBER = regex.compile(r"\p{Nd}++(?:[.,:/-]\p{Nd}++)*+")


def find_code(line) -> list[tuple[int, int]]:
    """Return start and end of each part of a line that no language translates.

    >>> line = "Hallo {name}, kopiere %d MP3s nach C:\\\\x („www.example.de“)."
    >>> [line[start:end] for start, end in find_code(line)]
    ['{name}', '%d', 'MP3s', 'C:\\\\x', 'www.example.de']
    """
    spans = []
    for match in TOKEN.finditer(line):
        codes = [code.span() for code in CODE.finditer(match[0])]
        start, end = trimmed(match[0])
        if codes:
            start, end = min(start, codes[0][0]), max(end, codes[-1][1])
        rest = CODE.sub(" ", match[0][start:end])
        if (codes and not WORD.search(rest)) or (end - start > 1 and UNLIKE_WORDS.search(rest)):
            codes = [(start, end)]
        spans += [(match.start() + start, match.start() + end) for start, end in codes]
    return spans


def trimmed(token) -> tuple[int, int]:
    """Return where a token begins and ends without the punctuation around it.

    A bracket or a quotation mark that closes one of the token belongs to it: https://x.org/a_(b)
    """
    start = len(token) - len(token.lstrip(OPENING))
    end = max(start, len(token.rstrip(CLOSING)))
    for last in token[end:]:
        opener, inner = OPENERS.get(last, last), token[start:end]
        if last not in OPENERS or inner.count(opener) <= (last != opener) * inner.count(last):
            break
        end += 1
    return start, end
