/* Philox4x32-10 and the normal quantile. Only pure functions: a draw depends on its identity and on nothing else.
 * Deliberately not here: distributions over logits (sample/) and Huginn's truncation (model/).
 */
#include "base/philox.h"

#include <math.h>

/* Constants: Salmon et al., SC'11, table 2 (multipliers) and section 4.3 (Weyl increments of the key). */
#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u
enum { PHILOX_ROUNDS = 10 };

void gy_philox4x32_10(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3], k0 = key[0], k1 = key[1];
    for (int i = 0; i < PHILOX_ROUNDS; i++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0, p1 = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void gy_rand_block(uint64_t seed, uint32_t choice, uint32_t position, gy_rand_purpose purpose, uint32_t block,
                   uint32_t out[4]) {
    const uint32_t ctr[4] = {position, choice, (uint32_t)purpose, block};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    gy_philox4x32_10(ctr, key, out);
}

/* Rational approximations of Wichura, Algorithm AS 241 (Applied Statistics 37 (3), 1988, 477-484), routine PPND16.
 * Coefficients from the constant upwards; the region is chosen by |p - 1/2| and then by r = sqrt(-log(tail)). */
enum { PPND_TERMS = 8 };
static const double ppnd_centre[2][PPND_TERMS] = {
    {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3},
    {1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3, 2.1213794301586595867e4,
     3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3}};
static const double ppnd_near[2][PPND_TERMS] = {
    {1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
     1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4},
    {1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1, 1.48103976427480074590e-1,
     1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9}};
static const double ppnd_far[2][PPND_TERMS] = {
    {6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
     2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7},
    {1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2, 7.86869131145613259100e-4,
     1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15}};

static double ppnd_ratio(const double c[2][PPND_TERMS], double r) {
    double num = c[0][PPND_TERMS - 1], den = c[1][PPND_TERMS - 1];
    for (int i = PPND_TERMS - 2; i >= 0; i--) {
        num = num * r + c[0][i];
        den = den * r + c[1][i];
    }
    return num / den;
}

/* The ends 0 and 1 give the infinities; what is no probability gives NaN. */
double gy_normal_quantile(double p) {
    if (!(p >= 0.0 && p <= 1.0)) return NAN;
    if (p == 0.0 || p == 1.0) return p == 0.0 ? -INFINITY : INFINITY;
    double q = p - 0.5;
    if (fabs(q) <= 0.425) return q * ppnd_ratio(ppnd_centre, 0.180625 - q * q);
    double r = sqrt(-log(q < 0.0 ? p : 1.0 - p));
    double x = r <= 5.0 ? ppnd_ratio(ppnd_near, r - 1.6) : ppnd_ratio(ppnd_far, r - 5.0);
    return q < 0.0 ? -x : x;
}
