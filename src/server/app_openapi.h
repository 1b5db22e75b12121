/* docs/openapi.json inside the program; cmake/embed.cmake writes the definitions. */
#ifndef GY_SERVER_APP_OPENAPI_H
#define GY_SERVER_APP_OPENAPI_H

#include <stddef.h>

extern const unsigned char gy_app_openapi_file[];
extern const size_t gy_app_openapi_file_len;

#endif
