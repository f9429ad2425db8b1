#!/bin/sh
# Writes behind each image of an environment file the digest that its tag has now: pin-images.sh infra/.env
#
#   NAME=repository:tag   becomes   NAME=repository:tag@sha256:...
#
# A digest that is there already is looked up again. The registry is asked by `docker buildx imagetools`, which pulls
# nothing; a digest covers all platforms of the image. The file is replaced as a whole, or left alone when one fails.

set -eu
file=$1
new=$(mktemp "$file.XXXXXX")
trap 'rm -f "$new"' EXIT
while IFS= read -r line; do
    case $line in
        '#'* | '') printf '%s\n' "$line" ;;
        *=*:*)
            image=${line#*=}
            tagged=${image%%@*}
            digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$tagged") || {
                echo "pin-images: no registry says anything of $tagged; has docker its buildx, and does the tag exist?" >&2
                exit 1
            }
            case $digest in
                sha256:*) printf '%s=%s@%s\n' "${line%%=*}" "$tagged" "$digest" ;;
                *) echo "pin-images: '$digest' is no digest of $tagged" >&2; exit 1 ;;
            esac
            ;;
        *) echo "pin-images: '$line' in $file is not NAME=repository:tag" >&2; exit 1 ;;
    esac
done < "$file" > "$new"
chmod --reference="$file" "$new"
mv "$new" "$file"
trap - EXIT
