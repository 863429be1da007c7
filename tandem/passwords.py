"""Addresses of servers without their passwords, for messages and links."""


def without_password(url: str) -> str:
    """Return `url` without its user name and password. Text that is not an address is returned unchanged.

    A password may contain an unescaped `/`, `?`, `#` or `@`: everything up to the last `@` is removed.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or "@" not in rest:
        return url
    return f"{scheme}://{rest.rpartition('@')[2]}"
