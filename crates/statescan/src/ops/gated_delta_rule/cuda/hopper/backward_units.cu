// Units of the backward pass, with one decay a head. Beside them its walks and gradients get what `backward_prepare.cu` leaves there otherwise: keys and
// queries as units, and what steps have.
#include "head_units.cuh"

// Rows of what a step has, by `backward_tiles.cuh`.
constexpr int SUM = 0, SINCE = 1, UNTIL = 2, BETA_ROW = 3, RUN = 4, TOKEN_ROWS = 5;

struct BackwardMaker : HeadMaker {
  using HeadMaker::HeadMaker;

  // Rows over their lengths, queries with the scale, as tiles.
  DEVICE void write_lines(const Work& w) {
    const i64 index = (w.batch * p.places + w.place) * p.key_heads + w.key_head;
#pragma unroll
    for (int of = 0; of < 2; of++) {
      char* const to = static_cast<char*>(of == 0 ? p.k_units : p.q_units) + index * (CHUNK * KEYS * 2);
      const f32* const lengths = of == 0 ? room.key : room.query;
#pragma unroll 4
      for (int i = thread; i < CHUNK * KEYS / 8; i += 128) {
        const uint4 from = reinterpret_cast<const uint4*>(of == 0 ? keys : queries)[i];
        const f32 length = lengths[i / 8 % CHUNK], factor = of == 0 ? length : length * p.scale;
        const u32 two[4] = {from.x, from.y, from.z, from.w};
        u32 out[4];
#pragma unroll
        for (int e = 0; e < 4; e++) out[e] = pack_bf16(factor * low_bf16(two[e]), factor * high_bf16(two[e]));
        reinterpret_cast<uint4*>(to)[i] = make_uint4(out[0], out[1], out[2], out[3]);
      }
      if (thread < CHUNK) p.norms[(index * 2 + of) * CHUNK + thread] = lengths[thread];
    }
  }

  DEVICE void write_tokens(const Work& w, int member) {
    if (thread >= CHUNK) return;
    const f32 *const c = room.sums[member], beta = room.betas[member][thread];
    f32* const to = p.tokens + ((w.batch * p.places + w.place) * p.heads + w.key_head * GROUP + member) * (TOKEN_ROWS * CHUNK) + thread;
    to[SUM * CHUNK] = LN_2 * c[thread], to[SINCE * CHUNK] = exp2_fast(c[thread]), to[UNTIL * CHUNK] = exp2_fast(c[CHUNK - 1] - c[thread]);
    to[BETA_ROW * CHUNK] = beta, to[RUN * CHUNK] = 0.f;
    reinterpret_cast<f32*>(unit + FACTORS_AT)[BETAS + thread] = beta;
  }

  // Makes the units of one that is being loaded, and starts to load the next one.
  DEVICE void make(const Work& w, const Work& next, u32 phase) {
    sum_up();
    await_rows(w, phase);
    Sums<64> kk, qk;
    multiply_all(kk, qk);
    meet();
    write_lines(w);
    meet();
    if (next.exists(p)) load(next);
#pragma unroll 1
    for (int member = 0; member < GROUP; member++) {
      u32 a[16];
      weigh(member, kk, qk, a);
      make_inverse(nullptr);
      write_rows(a);
      write_factors(member);
      write_tokens(w, member);
      fence_async();
      meet();
      hand_on(w.unit(p, member));
    }
  }
};

extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS, RESIDENT) gated_delta_rule_backward_units(const __grid_constant__ Params p) {
  make_units<BackwardMaker>(p);
}
