"""Addresses of servers, as they may be shown."""


def without_password(url: str) -> str:
    """`url` without the user name and password in it; text that is no address is returned as it is.

    A password may hold an unescaped `/`, `?`, `#` or `@`: everything up to the last `@` goes.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or "@" not in rest:
        return url
    return f"{scheme}://{rest.rpartition('@')[2]}"
