# The image holds the wheel of `make wheel`: build it with `make image`.
# Any Debian or Ubuntu base with Python 3.11 or newer will do.
ARG BASE=debian:trixie-slim
FROM ${BASE}

RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates git openssh-client python3 python3-venv tini \
    && rm -rf /var/lib/apt/lists/*

# Build with your own user id (make image UID=$(id -u)) if you mount repositories of yours.
ARG UID=1000
RUN useradd --uid "${UID}" --create-home --shell /bin/bash kapelle \
    && install -d -o kapelle -g kapelle /work

RUN --mount=type=bind,source=dist,target=/dist \
    python3 -m venv /opt/kapelle \
    && /opt/kapelle/bin/pip install --no-cache-dir --disable-pip-version-check /dist/kapelle-*.whl \
    && ln -s /opt/kapelle/bin/kapelle /usr/local/bin/kapelle

LABEL org.opencontainers.image.title="Kapelle" \
      org.opencontainers.image.source="https://github.com/kapelle-dev/kapelle" \
      org.opencontainers.image.licenses="MIT"

USER kapelle
ENV HOME=/home/kapelle LANG=C.UTF-8
WORKDIR /work
# Kapelle's state and settings, and the logins of agents.
VOLUME /home/kapelle
EXPOSE 8080

# tini reaps the processes that agents leave behind, and hands signals on.
ENTRYPOINT ["tini", "--", "kapelle"]
# Every address inside the container; publish the port on 127.0.0.1 of the host only.
CMD ["serve", "--host", "0.0.0.0", "--port", "8080", "--expose"]
