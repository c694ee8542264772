#!/usr/bin/env bash
# Build the container images that tasks run in. See README.md beside this file.
set -euo pipefail
export LC_ALL=C # the tag depends on the order of file names

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
versions=$here/versions.env
prefix=${RUNNER_IMAGES_PREFIX:-runner}

usage() {
  cat <<'TEXT'
Usage: images/build.sh [OPTION...] FRAMEWORK...|all
       images/build.sh --list | --pin [FRAMEWORK...]

  --push [REGISTRY] also push, to REGISTRY/runner/FRAMEWORK:TAG; signs in to *.azurecr.io with az.
                    The default is the registry of the selected stack
  --stack NAME      use the registry of this stack (default: see runner config show)
  --no-login        do not sign in; use the engine's credentials
  --engine NAME     docker or podman (default: the first one that runs)
  --force           build even if the tag exists
  --tag             print the images' names and stop
  --list            print the frameworks and stop
  --pin             pull the base images and write their digests into versions.env
The tag is a hash of the framework's folder, shared/ and its lines of versions.env.
RUNNER_IMAGES_BUILD_FLAGS is added to the engine's build command, such as --isolation=chroot.
TEXT
}

say() { printf '%s\n' "$*" >&2; }
# fail WHAT FIX [CODE]: print an error and exit.
fail() {
  say "error: $1"
  say "fix:   $2"
  exit "${3:-1}"
}

# sha256: hash stdin.
sha256() {
  if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi
}

frameworks() {
  local file
  for file in "$here"/*/Containerfile; do
    [ ! -e "$file" ] || basename "$(dirname "$file")"
  done
}

# variable FRAMEWORK PART: print a value of versions.env, for keras-jax BASE that of KERAS_JAX_BASE.
variable() {
  local name
  name=$(printf '%s_%s' "$1" "$2" | tr 'a-z-' 'A-Z_')
  sed -n "s/^$name=//p" "$versions"
}

check_framework() {
  [[ $1 =~ ^[a-z0-9-]+$ && -f $here/$1/Containerfile ]] ||
    fail "unknown image '$1'" "use one of: $(frameworks | tr '\n' ' ')" 2
  [ -n "$(variable "$1" BASE)" ] ||
    fail "versions.env has no base image for '$1'" "add a line such as $(printf '%s' "$1" | tr 'a-z-' 'A-Z_')_BASE=ubuntu:24.04" 2
}

base_of() {
  local digest
  digest=$(variable "$1" DIGEST)
  printf '%s%s' "$(variable "$1" BASE)" "${digest:+@$digest}"
}

# The tag is a hash of the content, so an image whose tag exists is not built again.
tag_of() {
  (
    cd "$here"
    {
      base_of "$1"
      find shared "$1" -type f ! -path '*/__pycache__/*' | sort | while IFS= read -r file; do
        printf '%s\n' "$file"
        sha256 <"$file"
      done
    } | sha256 | cut -c1-16
  )
}

name_of() { printf '%s/%s:%s' "$prefix" "$1" "$(tag_of "$1")"; }

find_engine() {
  local candidate
  for candidate in ${engine:-docker podman}; do
    if command -v "$candidate" >/dev/null && "$candidate" info >/dev/null 2>&1; then
      engine=$candidate
      return
    fi
  done
  fail "no container engine is running (tried: ${engine:-docker podman})" \
    "start Docker, or install podman; select one with --engine" 3
}

# Sign in with a token that is passed on stdin, so that it is not in the process list. Azure documents
# this user name for Helm and ORAS (read 2026-11-21).
sign_in() {
  case $registry in
    *.azurecr.io | *.azurecr.cn | *.azurecr.us) ;;
    *) return ;; # for other registries, use the engine's credentials
  esac
  command -v az >/dev/null ||
    fail "signing in to $registry needs the Azure CLI" \
      "install az, or run $engine login $registry and add --no-login" 4
  local token
  token=$(az acr login --name "${registry%%.*}" --expose-token --output tsv --query accessToken) ||
    fail "az returned no token for $registry" \
      "run az login; you need the role AcrPush on the registry (operators in Pulumi.<stack>.yaml)" 4
  printf '%s' "$token" | "$engine" login "$registry" \
    --username 00000000-0000-0000-0000-000000000000 --password-stdin >&2 ||
    fail "$engine could not sign in to $registry" "check that the registry exists and is reachable" 4
}

# Ask `runner` for the stack's registry: the command on PATH, or that of this clone.
find_registry() {
  local runner
  runner=$(command -v runner || true)
  [ -n "$runner" ] || runner=$here/../.venv/bin/runner
  [ -x "$runner" ] ||
    fail "finding the stack's registry needs runner, which is not installed" \
      "run make setup, or name the registry: --push NAME.azurecr.io" 3
  registry=$("$runner" image registry ${stack:+--stack "$stack"}) ||
    fail "cannot find the stack's registry (see above)" \
      "follow the fix above, or name the registry: --push NAME.azurecr.io" 3
}

is_local() { "$engine" image inspect "$1" >/dev/null 2>&1; }

is_remote() {
  case $engine in
    podman) podman manifest inspect "docker://$1" >/dev/null 2>&1 ;;
    *) "$engine" manifest inspect "$1" >/dev/null 2>&1 ;;
  esac
}

build_one() {
  local framework=$1 name=$2 base
  base=$(base_of "$framework")
  say "$framework: building $name from $base"
  # shellcheck disable=SC2086  # the flags are to be split
  "$engine" build ${RUNNER_IMAGES_BUILD_FLAGS:-} --platform linux/amd64 \
    --build-arg "BASE=$base" --tag "$name" --file "$here/$framework/Containerfile" "$here" >&2 ||
    fail "$framework: the build of $name failed" \
      "see the last lines above; the last step is the smoke test, $framework/smoke_test.py"
}

push_one() {
  local framework=$1 name=$2
  "$engine" tag "$name" "$registry/$name"
  say "$framework: pushing $registry/$name"
  "$engine" push "$registry/$name" >&2 ||
    fail "$framework: $registry/$name could not be pushed" \
      "check that you have the role AcrPush, then run this again; the image is built"
}

make_one() {
  local framework=$1 name
  name=$(name_of "$framework")
  if [ -n "$registry" ] && [ -z "$force" ] && is_remote "$registry/$name"; then
    say "$framework: $registry/$name already exists"
    printf '%s\n' "$registry/$name"
    return
  fi
  if [ -z "$force" ] && is_local "$name"; then
    say "$framework: $name already exists"
  else
    build_one "$framework" "$name"
  fi
  [ -z "$registry" ] || push_one "$framework" "$name"
  printf '%s\n' "${registry:+$registry/}$name"
}

pin_one() {
  local framework=$1 base name digest
  base=$(variable "$framework" BASE)
  say "$framework: pulling $base"
  "$engine" pull --platform linux/amd64 "$base" >&2 ||
    fail "$framework: $base cannot be pulled" "the tag may have been deleted: choose another one in versions.env"
  digest=$("$engine" image inspect --format '{{index .RepoDigests 0}}' "$base")
  digest=${digest##*@}
  case $digest in
    sha256:????????????????????????????????????????????????????????????????) ;;
    *) fail "$framework: $engine has no digest for $base, but '$digest'" "use a base image from a registry" ;;
  esac
  name=$(printf '%s_DIGEST' "$framework" | tr 'a-z-' 'A-Z_')
  sed "s/^$name=.*/$name=$digest/" "$versions" >"$versions.new"
  mv "$versions.new" "$versions"
  grep -q "^$name=$digest\$" "$versions" ||
    fail "versions.env has no line $name=" "add it: $name=$digest"
  printf '%s %s\n' "$base" "$digest"
}

check_pinned() {
  local framework
  for framework in "$@"; do
    [ -z "$(variable "$framework" DIGEST)" ] || continue
    [ -z "$registry" ] ||
      fail "$framework: the base image has no digest, so the tag would not identify the content" \
        "run images/build.sh --pin $framework, and commit versions.env" 2
    say "$framework: the base image has no digest yet (run images/build.sh --pin)"
  done
}

engine='' registry='' stack='' stacks='' force='' login=yes action=build
chosen=()
while [ $# -gt 0 ]; do
  case $1 in
    --engine | --stack)
      [ -n "${2:-}" ] || fail "$1 needs a value" "see --help" 2
      if [ "$1" = --engine ]; then engine=$2; else stack=$2; fi
      shift
      ;;
    --push)
      case ${2:-} in
        *.* | *:* | */* | localhost)
          registry=${2%/}
          shift
          ;;
        *) stacks=yes ;; # no registry follows, so use the stack's
      esac
      ;;
    --force) force=yes ;;
    --no-login) login= ;;
    --tag | --list | --pin) action=${1#--} ;;
    --help | -h) usage && exit 0 ;;
    -*) fail "unknown option $1" "see --help" 2 ;;
    all) while IFS= read -r one; do chosen+=("$one"); done < <(frameworks) ;;
    *) chosen+=("$1") ;;
  esac
  shift
done

if [ "$action" = list ]; then frameworks && exit 0; fi
if [ "$action" = pin ] && [ ${#chosen[@]} -eq 0 ]; then
  while IFS= read -r one; do chosen+=("$one"); done < <(frameworks)
fi
[ ${#chosen[@]} -gt 0 ] || fail "missing image" "name one or more, or all: $(frameworks | tr '\n' ' ')" 2
case $registry in
  http://* | https://*) fail "--push needs a host, not the URL $registry" "remove https://" 2 ;;
esac
[ -z "$stack" ] || [ -n "$stacks" ] || fail "--stack needs --push without a registry" "see --help" 2
for one in "${chosen[@]}"; do check_framework "$one"; done
if [ -n "$stacks" ]; then find_registry; fi
if [ "$action" = tag ]; then
  for one in "${chosen[@]}"; do printf '%s\n' "${registry:+$registry/}$(name_of "$one")"; done
  exit 0
fi
[ "$action" = pin ] || check_pinned "${chosen[@]}"
find_engine
if [ "$action" = pin ]; then
  for one in "${chosen[@]}"; do pin_one "$one"; done
  exit 0
fi
if [ -n "$registry" ] && [ -n "$login" ]; then sign_in; fi
for one in "${chosen[@]}"; do make_one "$one"; done
