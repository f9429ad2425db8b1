"""Gives the broker the password of each role that is named, as its administrator.

    set_users.py HOST:PORT ADMIN_FOLDER PASSWORD_FOLDER ROLE...

ADMIN_FOLDER has admin.pem and ca.pem, PASSWORD_FOLDER a folder with a file `password` for each role. The broker gets each
password salted and iterated, never as it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kafka.admin import KafkaAdminClient, ScramMechanism, UserScramCredentialUpsertion

iterations = 8192


def main(address: str, admin_folder: str, password_folder: str, *roles: str) -> int:
    """Set the password of each role. Returns 1 where the broker refused one, and says which and why."""
    place = Path(admin_folder)
    admin = KafkaAdminClient(
        bootstrap_servers=address,
        security_protocol="SSL",
        ssl_cafile=str(place / "ca.pem"),
        ssl_certfile=str(place / "admin.pem"),
        ssl_keyfile=str(place / "admin.pem"),
    )
    try:
        answers = admin.alter_user_scram_credentials(
            [
                UserScramCredentialUpsertion(
                    role,
                    ScramMechanism.SCRAM_SHA_512,
                    (Path(password_folder) / role / "password").read_bytes(),
                    iterations=iterations,
                )
                for role in roles
            ]
        )
    finally:
        admin.close()
    refused = {role: problem for role, problem in answers.items() if problem}
    for role, problem in refused.items():
        print(f"set-users: the broker refused the password of {role}: {problem}", file=sys.stderr)  # noqa: T201
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
