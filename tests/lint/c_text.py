"""C source with comments and the insides of strings blanked out, lines kept. Used by the other checks here."""
import re

TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def blank(match):
    text = match.group(0)
    if text[0] in "\"'":
        return text[0] + text[0]
    return "\n" * text.count("\n") or " "


def code_of(source):
    return TOKEN.sub(blank, source)
