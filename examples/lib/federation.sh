# federation.sh - one federation on this machine, for the runnable examples: an aggregator and many devices as processes.
#
# The example sets the variables of `federation_defaults` it wants otherwise, then calls, in this order:
#   federation_options "$@"   --transport WHICH, --json, --seed S, --keep DIR, --help
#   federation_build          packages and the release preset
#   ...                       makes $RUN/data and $RUN/initial.safetensors with `sheaf data` and `sheaf model`
#   federation_pki            certificates for the aggregator, each device, and the broker if there is one
#   federation_train          starts the processes, shows a line a round, waits for the end
#   federation_result         where everything lies; with --json one object on the last line
#
# Everything of a run lies in the folder $RUN. All processes end with the script, also when it is interrupted or
# terminated. Only after a `kill -9` of the script nobody stops them: they go on until their job has ended.
# shellcheck shell=bash disable=SC2034

federation_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BIN=$federation_root/build/release

federation_defaults() {
    NAME=example          # of the run and of the job
    TENANT=demo
    CLIENTS=20
    ROUNDS=30
    EPOCHS=4
    BATCH=8
    LEARNING_RATE=0.05
    MOMENTUM=0.9
    WORKERS=2
    SEED=1
    TRANSPORT=nng
    JSON=0
    RUN=
}

say() { printf '%s\n' "$*"; }

die() { # prints why, and ends with the exit code of the first argument
    local code=$1
    shift
    printf '%s: %s\n' "$NAME" "$*" >&2
    exit "$code"
}

federation_options() {
    while [ $# -gt 0 ]; do
        case "$1" in
            --json) JSON=1 ;;
            --transport) TRANSPORT=${2:-} && shift ;;
            --seed) SEED=${2:-} && shift ;;
            --keep) RUN=${2:-} && shift ;;
            -h | --help) federation_usage && exit 0 ;;
            *) federation_usage >&2 && exit 2 ;;
        esac
        shift || { federation_usage >&2 && exit 2; }
    done
    federation_transport
    [[ $SEED =~ ^[0-9]{1,9}$ ]] || die 2 "--seed: '$SEED' is no number of at most nine digits"
    [ -n "$RUN" ] || RUN=$federation_root/build/runs/$NAME-$SEED
    case "$RUN" in /*) ;; *) RUN=$PWD/$RUN ;; esac
}

# How many of the devices go through the broker.
federation_transport() {
    case "$TRANSPORT" in
        nng) VIA_BROKER=0 ;;
        mqtt) VIA_BROKER=$CLIENTS ;;
        both) VIA_BROKER=$((CLIENTS / 2)) ;;
        *) die 2 "--transport: '$TRANSPORT' is none of nng, mqtt, both" ;;
    esac
}

# An example with options of its own defines federation_usage again, and ends it with federation_usage_common.
federation_usage() {
    say "usage: $0 [--transport nng|mqtt|both] [--json] [--seed S] [--keep DIR]"
    say
    federation_usage_common
}

federation_usage_common() {
    say "  --transport WHICH"
    say "              nng: devices connect to the aggregator (default); mqtt: through a broker of this run's own;"
    say "              both: half of them each way, in one job"
    say "  --json      end with one JSON object on the last line"
    say "  --seed S    of the split, the first model and the training (default 1)"
    say "  --keep DIR  folder of the run; it must not exist (default build/runs/$NAME-SEED, made anew)"
}

federation_build() {
    local log=$federation_root/build/logs/$NAME-build.log
    "$federation_root/examples/install-packages" "$federation_root/examples/packages.txt"
    mkdir -p "$federation_root/build/logs"
    say "building (build/release)"
    if ! (cd "$federation_root" && cmake --preset release -DSHEAF_BUILD_TESTS=OFF &&
        cmake --build --preset release -j "$(nproc)") >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        die 4 "the build failed; all of it is in $log"
    fi
    federation_folder
}

# A folder that we made in an earlier run is replaced; any other that is there is left alone.
federation_folder() {
    if [ -e "$RUN" ]; then
        [ -e "$RUN/.sheaf-run" ] || die 3 "$RUN is there already"
        rm -rf "$RUN"
    fi
    mkdir -p "$RUN/logs" "$RUN/devices" || die 4 "cannot make $RUN"
    : >"$RUN/.sheaf-run"
}

device_name() { printf 'device-%02d' "$1"; }

federation_pki() {
    local number
    say "making certificates for $CLIENTS devices"
    {
        "$BIN/server/sheaf" pki init --dir "$RUN/pki"
        "$BIN/server/sheaf" pki issue --dir "$RUN/pki" --role aggregator --name aggregator --tenant "$TENANT"
        [ "$VIA_BROKER" = 0 ] ||
            "$BIN/server/sheaf" pki issue --dir "$RUN/pki" --role broker --name broker --tenant "$TENANT"
        for ((number = 0; number < CLIENTS; number++)); do
            "$BIN/server/sheaf" pki issue --dir "$RUN/pki" --role device --name "$(device_name "$number")" --tenant "$TENANT"
        done
    } >"$RUN/logs/pki.log" || die 4 "cannot make certificates; see $RUN/logs/pki.log"
}

federation_server_config() {
    cat <<YAML
server:
  listen: "$LISTEN"
  state: state
  certificate: pki/aggregator-aggregator.pem
  key: pki/aggregator-aggregator.key
  ca: pki/ca.pem
  workers: $WORKERS
  exit_when_done: true
broker:
  url: "$BROKER_URL"
log:
  file: logs/sheafd.log
jobs:
  - tenant: $TENANT
    name: $NAME
    initial_model: initial.safetensors
    rounds: $ROUNDS
    cohort: {minimum: $CLIENTS, target: $CLIENTS, maximum: $CLIENTS}
    plan:
      epochs: $EPOCHS
      batch: $BATCH
      learning_rate: $LEARNING_RATE
      momentum: $MOMENTUM
      seed: $SEED
YAML
}

# ---- processes ----

declare -A federation_names=() federation_logs=()

federation_start() { # NAME LOG COMMAND...: in the background, noted for federation_stop
    local name=$1 log=$2
    shift 2
    "$@" >>"$log" 2>&1 </dev/null &
    federation_names[$!]=$name
    federation_logs[$!]=$log
}

federation_stop() {
    local pid deadline=$((SECONDS + 10))
    trap - EXIT INT TERM
    set +e # a process that is gone already must not keep the others alive
    for pid in "${!federation_names[@]}"; do kill -TERM "$pid" 2>/dev/null; done
    for pid in "${!federation_names[@]}"; do
        while kill -0 "$pid" 2>/dev/null && [ $SECONDS -lt $deadline ]; do sleep 0.1; done
        kill -KILL "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
    federation_names=()
}

federation_died() { # NAME STATUS LOG
    [ "$1" != sheafd ] || cat "$RUN/logs/sheafd.log" >>"$3" 2>/dev/null || true
    say "$1 ended with exit code $2; the end of $3:" >&2
    tail -n 20 "$3" >&2
    die 4 "a process died"
}

# Whether a process that ended with 0 had reason to: a service or device that is told to stop (SIGTERM) ends with 0 too,
# and the watcher would wait for ever for its rounds.
federation_done() { # NAME LOG
    case "$1" in
        watch) return 0 ;;
        broker) return 1 ;;
        sheafd) grep -q job_ended "$RUN/logs/sheafd.log" ;;
        *) grep -q job_ended "$2" ;;
    esac
}

federation_device_config() { # NUMBER URL
    local name data
    name=$(device_name "$1")
    data=../data/client-$(printf '%02d' "$1") # from the config's folder: $RUN may hold what YAML reads otherwise
    cat <<YAML
edge:
  url: $2
  job: $NAME
  tenant: $TENANT
  state: $name/state
  certificate: ../pki/device-$name.pem
  key: ../pki/device-$name.key
  ca: ../pki/ca.pem
  exit_when_done: true
trainer:
  network: ../network.yaml
YAML
    if [ -e "$RUN/devices/$data.csv" ]; then say "  data: $data.csv"
    else printf '  data: %s\n  labels: %s\n' "$data-images.idx" "$data-labels.idx"
    fi
}

federation_data_options() { # train or test: DATA_OPTIONS becomes the options that name these examples
    local data=$RUN/data/$1
    if [ -e "$data.csv" ]; then DATA_OPTIONS=(--data "$data.csv")
    else DATA_OPTIONS=(--data "$data-images.idx" --labels "$data-labels.idx")
    fi
}

# A Mosquitto of this run's own, on a free port of loopback. It needs no rights; as root it would become another user,
# who may not read the keys of this run.
federation_broker() {
    local port config=$RUN/broker/mosquitto.conf try
    BROKER_URL=
    LISTEN=tls+tcp://127.0.0.1:0
    [ "$TRANSPORT" != mqtt ] || LISTEN=
    [ "$VIA_BROKER" != 0 ] || return 0
    port=$(/usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    "$BIN/server/sheaf" pki broker-config --listen "127.0.0.1:$port" --certificate "$RUN/pki/broker-broker.pem" \
        --key "$RUN/pki/broker-broker.key" --ca "$RUN/pki/ca.pem" --name aggregator --out "$RUN/broker" \
        >"$RUN/logs/broker-config.log" || die 4 "see $RUN/logs/broker-config.log"
    [ "$(id -u)" != 0 ] || echo "user root" >>"$config"
    federation_start broker "$RUN/logs/broker.log" /usr/sbin/mosquitto -c "$config"
    for ((try = 0; try < 100; try++)); do
        if (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            BROKER_URL=mqtts://127.0.0.1:$port
            say "the broker listens on $BROKER_URL"
            return 0
        fi
        sleep 0.1
    done
    federation_died broker "before it listened" "$RUN/logs/broker.log"
}

# Of device NUMBER: the first VIA_BROKER of them go through the broker.
federation_url() { # NUMBER URL-OF-SHEAFD
    if [ "$1" -lt "$VIA_BROKER" ]; then say "$BROKER_URL"; else say "$2"; fi
}

federation_wait_for_address() { # prints the url of the service, once it listens
    local try
    for ((try = 0; try < 300; try++)); do
        [ -s "$RUN/state/address" ] && head -n 1 "$RUN/state/address" && return 0
        kill -0 "$1" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}

federation_train() {
    local number url server status gone watching=1 began=$EPOCHREALTIME
    trap federation_stop EXIT
    trap 'federation_stop; say "$NAME: stopped" >&2; exit 130' INT TERM
    federation_broker
    federation_server_config >"$RUN/sheafd.yaml"
    federation_start sheafd "$RUN/logs/sheafd.out" "$BIN/server/sheafd" --config "$RUN/sheafd.yaml"
    server=$!
    url=$(federation_wait_for_address "$server") || {
        federation_died sheafd "before it listened" "$RUN/logs/sheafd.out"
    }
    say "sheafd listens on $url; starting $CLIENTS devices"
    for ((number = 0; number < CLIENTS; number++)); do
        federation_device_config "$number" "$(federation_url "$number" "$url")" >"$RUN/devices/$(device_name "$number").yaml"
        federation_start "$(device_name "$number")" "$RUN/logs/$(device_name "$number").log" \
            "$BIN/client/sheaf-edge" --config "$RUN/devices/$(device_name "$number").yaml"
    done
    federation_data_options test
    "$BIN/server/sheaf" job watch --state "$RUN/state" --job "$TENANT/$NAME" --network "$RUN/network.yaml" \
        "${DATA_OPTIONS[@]}" 2>&1 </dev/null &
    federation_names[$!]=watch
    federation_logs[$!]=$RUN/logs/sheafd.log
    # Until the service, the devices and the watcher have ended; the broker would stay.
    while [ ${#federation_names[@]} -gt $((VIA_BROKER > 0)) ]; do
        status=0
        wait -n -p gone "${!federation_names[@]}" || status=$?
        if [ $status -ne 0 ]; then federation_died "${federation_names[$gone]}" $status "${federation_logs[$gone]}"; fi
        if [ $watching = 1 ] && ! federation_done "${federation_names[$gone]}" "${federation_logs[$gone]}"; then
            federation_died "${federation_names[$gone]}" "0 before the job had ended" "${federation_logs[$gone]}"
        fi
        if [ "${federation_names[$gone]}" = watch ]; then watching=0; fi
        unset "federation_names[$gone]"
        if [ $watching = 0 ]; then
            SECONDS_OF_TRAINING=${SECONDS_OF_TRAINING:-$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')}
        fi
    done
    federation_stop
}

# The same trainer on the pooled data: what could be had if the data could be in one place.
federation_baseline() { # EPOCHS
    say "training the baseline on the pooled data"
    federation_data_options train
    "$BIN/server/sheaf" model train "$RUN/network.yaml" "${DATA_OPTIONS[@]}" --epochs "$1" --batch "$BATCH" \
        --lr "$LEARNING_RATE" --momentum "$MOMENTUM" --seed "$SEED" --from "$RUN/initial.safetensors" \
        -o "$RUN/baseline.safetensors" >"$RUN/logs/baseline.log" || die 4 "see $RUN/logs/baseline.log"
    federation_data_options test
    "$BIN/server/sheaf" model evaluate "$RUN/network.yaml" "$RUN/baseline.safetensors" "${DATA_OPTIONS[@]}" --json \
        >"$RUN/baseline.json"
}

federation_result() {
    local model
    "$BIN/server/sheaf" job watch --state "$RUN/state" --job "$TENANT/$NAME" --json >"$RUN/rounds.jsonl"
    model=$(/usr/bin/python3 -B "$federation_root/examples/lib/result.py" --model "$RUN")
    federation_data_options test
    "$BIN/server/sheaf" model evaluate "$RUN/network.yaml" "$model" "${DATA_OPTIONS[@]}" --json >"$RUN/result.json"
    JSON=$JSON /usr/bin/python3 -B "$federation_root/examples/lib/result.py" "$RUN" "$CLIENTS" "$SECONDS_OF_TRAINING" "$TRANSPORT"
}
