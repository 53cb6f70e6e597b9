/* Test vectors of linger: see README.txt. */
#ifndef LINGER_VECTORS_H
#define LINGER_VECTORS_H

#include <stdint.h>

/* x (Input), float32 2x3x4 */
static const float b0_000_x[24] = {
  -1.625f, 0.9375f, -0.4375f, -1.8125f, 0.75f, -0.625f, 1.9375f, 0.75f, -0.625f, 1.9375f, 0.5625f, -0.8125f, 1.75f, 0.375f, -0.8125f, 1.75f,
  0.375f, -1.0f, 1.5625f, 0.1875f, -1.1875f, 1.5625f, 0.1875f, -1.1875f,
};

/* rnn.Quant (Quant), int8 2x3x4, scale 64 */
static const int8_t b0_001_rnn_Quant[24] = {
  -104, 60, -28, -116, 48, -40, 124, 48, -40, 124, 36, -52, 112, 24, -52, 112,
  24, -64, 100, 12, -76, 100, 12, -76,
};

/* rnn.LSTMInt (LSTMInt), int8 2x3x5, scale 256 */
static const int8_t b0_002_rnn_LSTMInt[30] = {
  -9, 10, 1, 33, 5, 1, 27, 3, 12, -17, -9, -9, 19, 33, 2, -6,
  -41, 22, 21, 47, 2, 54, -16, -13, 18, -7, 10, 5, 27, 7,
};

/* head.LinearInt (LinearInt), int8 2x3x3, scale 256 */
static const int8_t b0_005_head_LinearInt[18] = {
  -59, 42, -25, -67, 34, -32, -67, 35, -32, -82, 22, -45, -69, 31, -34, -63,
  38, -29,
};

/* scores (Dequant), float32 2x3x3, scale 256 */
static const float b0_006_scores[18] = {
  -0.23046875f, 0.1640625f, -0.09765625f, -0.26171875f, 0.1328125f, -0.125f, -0.26171875f, 0.13671875f, -0.125f, -0.3203125f, 0.0859375f, -0.17578125f, -0.26953125f, 0.12109375f, -0.1328125f, -0.24609375f,
  0.1484375f, -0.11328125f,
};

#endif
