# SPDX-License-Identifier: Apache-2.0
# For systems other than Debian 12:  docker build -t stepforge .  and  docker run -it stepforge
FROM debian:12
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git make
WORKDIR /stepforge
COPY . .
RUN scripts/setup.sh build demo && scripts/build.sh
CMD ["bash"]
