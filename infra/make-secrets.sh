#!/bin/sh
# Makes what the secured profile (docker-compose.secured.yml) needs, in a volume of which each container sees one folder:
#
#   make-secrets                  what is missing
#   make-secrets passwords        new passwords for every role
#   make-secrets certificates     a new authority and new certificates
#
#   authority/   key and certificate of the authority; only this script sees it
#   broker/      the broker's certificate with its key, and one for its health check, which has no rights
#   admin/       certificate and key of the administrator, who gives the roles their passwords
#   ROLE/        ca.pem and password: what one role needs, and nothing of another one
#
# Nothing secret is on a command line, in the environment or in the output. A password is 32 random bytes.
# Certificates are valid for ROLLOG_CERTIFICATE_DAYS days (365), the authority for ten times that.

set -eu
umask 077
root=${ROLLOG_SECRETS:-/var/lib/secrets}
roles="creator dispatcher rollout trainer watch"
days=${ROLLOG_CERTIFICATE_DAYS:-365}
broker_name=${ROLLOG_BROKER_NAME:-kafka}

make_key() {
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null
}

make_authority() {
    make_key "$root/authority/ca.key"
    openssl req -x509 -new -key "$root/authority/ca.key" -subj "/CN=rollog authority" -days $((days * 10)) \
        -addext "keyUsage=critical,keyCertSign,cRLSign" -out "$root/authority/ca.pem"
}

# make_certificate FILE NAME EXTENSION...: key and certificate in one file, in the form that Kafka reads
make_certificate() {
    file=$1 name=$2
    work=$(mktemp -d)
    shift 2
    make_key "$work/key"
    openssl req -new -key "$work/key" -subj "/CN=$name" -out "$work/request"
    printf '%s\n' "$@" > "$work/extensions"
    openssl x509 -req -in "$work/request" -CA "$root/authority/ca.pem" -CAkey "$root/authority/ca.key" \
        -CAcreateserial -days "$days" -extfile "$work/extensions" -out "$work/certificate" 2>/dev/null
    cat "$work/key" "$work/certificate" > "$root/$file"
    rm -r "$work"
}

make_certificates() {
    make_authority
    make_certificate broker/broker.pem broker \
        "subjectAltName=DNS:$broker_name,DNS:localhost,IP:127.0.0.1" "extendedKeyUsage=serverAuth,clientAuth"
    make_certificate broker/health.pem health "extendedKeyUsage=clientAuth"
    make_certificate admin/admin.pem admin "extendedKeyUsage=clientAuth"
    for place in broker admin $roles; do cp "$root/authority/ca.pem" "$root/$place/ca.pem"; done
    echo "make-secrets: certificates made, valid for $days days"
}

make_password() {
    openssl rand -hex 32 | tr -d '\n' > "$root/$1/password.new"
    mv "$root/$1/password.new" "$root/$1/password"
    echo "make-secrets: password of $1 made"
}

for place in authority broker admin $roles; do mkdir -p "$root/$place"; done
# Read by Kafka's own tools in the broker's container.
cat > "$root/broker/health.properties" <<'END'
security.protocol=SSL
ssl.truststore.type=PEM
ssl.truststore.location=/etc/rollog/secrets/ca.pem
ssl.keystore.type=PEM
ssl.keystore.location=/etc/rollog/secrets/health.pem
END
case ${1:-missing} in
    missing) [ -f "$root/authority/ca.pem" ] || make_certificates ;;
    passwords) for role in $roles; do rm -f "$root/$role/password"; done ;;
    certificates) make_certificates ;;
    *) echo "make-secrets: '$1' is neither 'passwords' nor 'certificates'" >&2; exit 2 ;;
esac
for role in $roles; do
    [ -f "$root/$role/password" ] || make_password "$role"
done
