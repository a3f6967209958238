"""Parts of a sentence that are the same in each language: addresses, placeholders, tags, emoji."""

import regex

# Possessive quantifiers and looking back keep the time linear.
# Scripts that write no spaces between words.
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
IN_WORD = rf"[\w--[{UNSPACED}]]"  # in a script with spaces between words
SPACED_LETTER = regex.compile(rf"[[\p{{L}}\p{{M}}\p{{N}}]--[{UNSPACED}]]", regex.V1)  # or a digit
IN_URL = rf"[[\w!#$%&'()*+,\-./:;=?@~]--[{UNSPACED}]]"
IN_NAME = rf"[[\w.+%-]--[{UNSPACED}]]"  # of an e-mail address
DOMAINS = (
    "com|org|net|info|edu|gov|io|eu|de|at|ch|uk|fr|it|es|nl|pl|cz|ru|jp|cn|hk|tw|kr|in|br|au|ie"
)
ATTRIBUTE = r"""\s++[\w:-]++\s*+=\s*+(?:"[^"<>]*+"|'[^'<>]*+'|[^\s"'<>=]++)"""
EMOJI = (
    r"(?:\p{RI}\p{RI}|[0-9#*]\ufe0f?\u20e3"
    r"|\p{Extended_Pictographic}[\ufe0e\ufe0f\p{Emoji_Modifier}\U000e0020-\U000e007f]*+"
    r"(?:\u200d\p{Extended_Pictographic}[\ufe0f\p{Emoji_Modifier}]*+)*+)"
)
PATTERNS = dict(
    url=rf"(?<!{IN_WORD})(?:[a-zA-Z][a-zA-Z+.-]{{1,20}}+://|www\.){IN_URL}*[[\w/=&~#%+-]&&{IN_URL}]",
    email=rf"(?<!{IN_NAME}){IN_NAME}++@(?:[\w-]{{1,63}}+\.){{1,5}}[\p{{L}}--[{UNSPACED}]]{{2,}}+",
    domain=rf"(?<![{IN_WORD}.@-])(?:[a-z0-9-]{{1,63}}+\.){{1,5}}(?:{DOMAINS})(?![{IN_WORD}-])(?:/{IN_URL}*[\w/=&~#-])?",
    handle=rf"(?<![{IN_WORD}@])@[A-Za-z0-9_]{{2,}}+",
    tag=rf"</?[A-Za-z][\w:-]*+(?:{ATTRIBUTE})*+\s*+/?>",
    entity=r"&(?:\#[0-9]{1,7}+|\#[xX][0-9a-fA-F]{1,6}+|[A-Za-z][A-Za-z0-9]{1,30}+);",
    braces=r"\{\{[^{}\s]{1,50}+\}\}|[$\#]?\{[^{}\s]{0,50}+\}|\[\[[^\[\]\s]{1,50}+\]\]",
    percent=rf"(?<![{IN_WORD}%])%(?:\(\w{{1,50}}+\))?(?:[0-9]+\$)?[-+0\#]*+[0-9]*+(?:\.[0-9]++)?[a-zA-Z@](?!{IN_WORD})",
    variable=rf"(?<![{IN_WORD}$])\$[A-Za-z_]{IN_WORD}*+",
    emoji=rf"{EMOJI}++",
)
SPAN = regex.compile("|".join(f"(?:{pattern})" for pattern in PATTERNS.values()), regex.V1)
NUMBER = regex.compile(r"\p{Nd}++(?:[.,:/-]\p{Nd}++)*+")
SPAN_OR_NUMBER = regex.compile(f"{SPAN.pattern}|{NUMBER.pattern}", regex.V1)
