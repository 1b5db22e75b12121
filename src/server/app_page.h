/* The files of src/server/page inside the program; cmake/embed.cmake writes the definitions. */
#ifndef GY_SERVER_APP_PAGE_H
#define GY_SERVER_APP_PAGE_H

#include <stddef.h>

extern const unsigned char gy_app_page_html[], gy_app_page_css[], gy_app_page_svg[];
extern const size_t gy_app_page_html_len, gy_app_page_css_len, gy_app_page_svg_len;
extern const char gy_app_page_html_tag[], gy_app_page_css_tag[], gy_app_page_svg_tag[];

extern const unsigned char gy_app_page_main[], gy_app_page_api[], gy_app_page_view[], gy_app_page_copy[];
extern const size_t gy_app_page_main_len, gy_app_page_api_len, gy_app_page_view_len, gy_app_page_copy_len;
extern const char gy_app_page_main_tag[], gy_app_page_api_tag[], gy_app_page_view_tag[], gy_app_page_copy_tag[];

#endif
