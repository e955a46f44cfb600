#include "common/log_config.h"

/* In the order of sheaf_log_level. */
static const char *const levels[] = {"debug", "info", "warning", "error", NULL};
static const char *const forms[] = {"text", "json", NULL};

const sheaf_config_field sheaf_log_config_fields[] = {
    {.key = "level",
     .kind = SHEAF_CONFIG_CHOICE,
     .offset = offsetof(sheaf_log_config, level),
     .preset = "info",
     .choices = levels,
     .help = "Least level that is written."},
    {.key = "form",
     .kind = SHEAF_CONFIG_CHOICE,
     .offset = offsetof(sheaf_log_config, json),
     .preset = "text",
     .choices = forms,
     .help = "For people or for machines."},
    {.key = "file",
     .kind = SHEAF_CONFIG_PATH,
     .offset = offsetof(sheaf_log_config, file),
     .help = "Appended to; standard error when absent."},
    {0},
};
