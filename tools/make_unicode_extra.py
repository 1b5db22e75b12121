#!/usr/bin/env python3
"""Writes src/text/unicode_extra.inc: code points that PyPI's tokenizers knows and older Unicode tables do not.

PCRE2 10.42 has Unicode 14, utf8proc 2.8 has 15, the Oniguruma inside tokenizers 0.23.3 has 16. The general categories of
the difference are measured from tokenizers itself (a Split with \\p{Xx} removes what it matches), so no other data file
is needed. Run with Python 3.11, whose unicodedata is 14.0: the table is "tokenizers minus unicodedata".
"""
import sys
import unicodedata

from tokenizers import Regex, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Cf".split()


def matched(pattern, code_points):
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set()
    for i in range(0, len(code_points), 4096):
        part = code_points[i : i + 4096]
        kept = set("".join(p for p, _ in split.pre_tokenize_str("\0".join(map(chr, part)))))
        found.update(c for c in part if chr(c) not in kept)
    return found


def main():
    if unicodedata.unidata_version != "14.0.0":
        sys.exit("needs a Python with Unicode 14.0 tables, this one has " + unicodedata.unidata_version)
    unassigned = [c for c in range(1, 0x110000) if unicodedata.category(chr(c)) == "Cn"]
    ranges = []
    for name in CATEGORIES:
        for c in sorted(matched(r"\p{%s}" % name, unassigned)):
            if ranges and ranges[-1][2] == name and ranges[-1][1] == c - 1:
                ranges[-1][1] = c
            else:
                ranges.append([c, c, name])
    for lo, hi, name in sorted(ranges):
        print('{0x%X, 0x%X, "%s"},' % (lo, hi, name))


if __name__ == "__main__":
    main()
