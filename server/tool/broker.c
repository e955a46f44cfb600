/* broker.c - `sheaf pki broker-config`: the files of a Mosquitto that devices and the aggregator meet at. */
#include <stdio.h>

#include "common/pki/broker_files.h"
#include "server/tool/pki.h"

int sheaf_pki_broker_config(const sheaf_pki_choices *chosen) {
    const char *folder = chosen->out != NULL ? chosen->out : "broker";
    sheaf_problem problem = {SHEAF_OK, ""};
    if (chosen->listen == NULL || chosen->certificate == NULL || chosen->key == NULL || chosen->ca == NULL ||
        chosen->name == NULL)
        return sheaf_pki_usage("broker-config needs --listen, --certificate, --key, --ca and --name");
    const sheaf_broker_options options = {chosen->listen, chosen->certificate, chosen->key, chosen->ca,
                                          chosen->crl,    chosen->name,        NULL};
    if (sheaf_broker_files_write(&options, folder, &problem) != SHEAF_OK)
        return sheaf_pki_fail("pki broker-config", &problem);
    if (chosen->json) return sheaf_pki_print_json(json_pack("{s:s}", "folder", folder));
    printf("%s/mosquitto.conf and %s/acl written\n", folder, folder);
    return SHEAF_EXIT_OK;
}
