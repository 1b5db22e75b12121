#!/bin/sh
# Does every folder of src/ with more than three files explain itself? usage: readmes.sh ROOT
# README.md, 30 to 60 lines: purpose, nouns, file map, rules, where its tests are. The README.md one folder up may do it
# for both, if it names the inner folder.
set -eu
cd "$1"
bad=0
for dir in $(find src -type d | sort); do
    n=$(find "$dir" -maxdepth 1 -type f ! -name README.md | wc -l)
    [ "$n" -gt 3 ] || continue
    if [ ! -f "$dir/README.md" ]; then
        if grep -qs "$(basename "$dir")/" "$(dirname "$dir")/README.md"; then continue; fi
        echo "$dir: $n files and no README.md"
        bad=1
        continue
    fi
    lines=$(wc -l <"$dir/README.md")
    if [ "$lines" -lt 30 ] || [ "$lines" -gt 60 ]; then
        echo "$dir/README.md: $lines lines, wanted 30 to 60"
        bad=1
    fi
done
exit $bad
