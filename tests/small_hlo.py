"""A program of a few lines, of which every byte can be counted by hand.

A prompt's loop (%ingest) and the one that decodes (%decode): it has a product of a
weight that a slice brings to VMEM, a row of a table gathered, two entries of a cache
written in place, a conditional, and an exchange.
"""

TEXT = """\
HloModule jit_run_program, is_scheduled=true

%gathered (p.0: bf16[100,8], p.1: s32[4]) -> bf16[4,8] {
  %p.0 = bf16[100,8]{1,0:T(8,128)(2,1)} parameter(0)
  %p.1 = s32[4]{0:T(128)} parameter(1)
  ROOT %gather.1 = bf16[4,8]{1,0:T(8,128)(2,1)} gather(%p.0, %p.1), slice_sizes={1,8}
}

%appended (p.2: bf16[32,8], p.3: bf16[2,8]) -> bf16[32,8] {
  %p.2 = bf16[32,8]{1,0:T(8,128)(2,1)} parameter(0)
  %p.3 = bf16[2,8]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %zero.1 = s32[]{:T(128)} constant(0)
  ROOT %update.1 = bf16[32,8]{1,0:T(8,128)(2,1)} dynamic-update-slice(%p.2, %p.3, \
%zero.1, %zero.1)
}

%multiplied (p.4: bf16[4,8], p.5: bf16[16,8]) -> f32[4,16] {
  %p.4 = bf16[4,8]{1,0:T(8,128)(2,1)} parameter(0)
  %p.5 = bf16[16,8]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %convolution.1 = f32[4,16]{1,0:T(8,128)} convolution(%p.4, %p.5), \
dim_labels=bf_oi->bf, metadata={op_name="jit(f)/while/body/verify"}
}

%narrow (c.0: bf16[4,8]) -> f32[4,16] {
  %c.0 = bf16[4,8]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %broadcast.1 = f32[4,16]{1,0:T(8,128)} broadcast(%c.0), dimensions={}
}

%wide (c.1: (bf16[4,8], bf16[16,8])) -> f32[4,16] {
  %c.1 = (bf16[4,8]{1,0:T(8,128)(2,1)}, bf16[16,8]{1,0:T(8,128)(2,1)}) parameter(0)
  %left.1 = bf16[4,8]{1,0:T(8,128)(2,1)} get-tuple-element(%c.1), index=0
  %right.1 = bf16[16,8]{1,0:T(8,128)(2,1)} get-tuple-element(%c.1), index=1
  ROOT %dot.1 = f32[4,16]{1,0:T(8,128)} dot(%left.1, %right.1), \
lhs_contracting_dims={1}, rhs_contracting_dims={1}
}

%ingest (i.0: (bf16[32,8])) -> (bf16[32,8]) {
  %i.0 = (bf16[32,8]{1,0:T(8,128)(2,1)}) parameter(0)
  %i.1 = bf16[32,8]{1,0:T(8,128)(2,1)} get-tuple-element(%i.0), index=0
  %copy.1 = bf16[32,8]{0,1:T(8,128)(2,1)} copy(%i.1)
  ROOT %i.2 = (bf16[32,8]{0,1:T(8,128)(2,1)}) tuple(%copy.1)
}

%decode (d.0: (bf16[32,8], bf16[100,8], bf16[16,8], s32[4], bf16[2,8], pred[])) -> () {
  %d.0 = (bf16[32,8]{1,0:T(8,128)(2,1)}, bf16[100,8]{1,0:T(8,128)(2,1)}, \
bf16[16,8]{1,0:T(8,128)(2,1)}, s32[4]{0:T(128)}, bf16[2,8]{1,0:T(8,128)(2,1)S(1)}, \
/*index=5*/pred[]{:T(512)}) parameter(0)
  %cache.1 = bf16[32,8]{1,0:T(8,128)(2,1)} get-tuple-element(%d.0), index=0
  %table.1 = bf16[100,8]{1,0:T(8,128)(2,1)} get-tuple-element(%d.0), index=1
  %weight.1 = bf16[16,8]{1,0:T(8,128)(2,1)} get-tuple-element(%d.0), index=2
  %ids.1 = s32[4]{0:T(128)} get-tuple-element(%d.0), index=3
  %new.1 = bf16[2,8]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%d.0), index=4
  %yes.1 = pred[]{:T(512)} get-tuple-element(%d.0), index=5
  %slice-start.1 = ((bf16[16,8]{1,0:T(8,128)(2,1)}), bf16[16,8]{1,0:T(8,128)(2,1)S(1)}\
, s32[]{:S(2)}) slice-start(%weight.1), slice={[0:16], [0:8]}
  %slice-done.1 = bf16[16,8]{1,0:T(8,128)(2,1)S(1)} slice-done(%slice-start.1)
  %rows.1 = bf16[4,8]{1,0:T(8,128)(2,1)} fusion(%table.1, %ids.1), kind=kLoop, \
calls=%gathered
  %product.1 = f32[4,16]{1,0:T(8,128)} fusion(%rows.1, %slice-done.1), kind=kOutput, \
calls=%multiplied, metadata={op_name="jit(f)/while/body/verify/dot_general"}
  %sum.1 = f32[4,16]{1,0:T(8,128)S(1)} all-reduce(%product.1), to_apply=%add
  %both.1 = (bf16[4,8]{1,0:T(8,128)(2,1)}, bf16[16,8]{1,0:T(8,128)(2,1)}) \
tuple(%rows.1, %weight.1)
  %chosen.1 = f32[4,16]{1,0:T(8,128)} conditional(%yes.1, %rows.1, %both.1), \
branch_computations={%narrow, %wide}
  %cache.2 = bf16[32,8]{1,0:T(8,128)(2,1)} fusion(%cache.1, %new.1), kind=kLoop, \
calls=%appended, backend_config={"aliasing_operands":{"lists":[{"indices":["0","2"]}]}}
  ROOT %d.1 = () tuple()
}

ENTRY %main (e.0: bf16[32,8], e.1: bf16[100,8], e.2: bf16[16,8], e.3: s32[4]) -> () {
  %e.0 = bf16[32,8]{1,0:T(8,128)(2,1)} parameter(0), \
metadata={op_name="state.cache.keys[0]"}
  %e.1 = bf16[100,8]{1,0:T(8,128)(2,1)} parameter(1), \
metadata={op_name="params.target[\'embedding\']"}
  %e.2 = bf16[16,8]{1,0:T(8,128)(2,1)} parameter(2), \
metadata={op_name="params.target[\'layers\'][0][\'weight\']"}
  %e.3 = s32[4]{0:T(128)} parameter(3), metadata={op_name="state.tokens"}
  %e.4 = bf16[2,8]{1,0:T(8,128)(2,1)S(1)} constant({...})
  %e.5 = pred[]{:T(512)} constant(true)
  %e.6 = (bf16[32,8]{1,0:T(8,128)(2,1)}) tuple(%e.0)
  %while.1 = (bf16[32,8]{0,1:T(8,128)(2,1)}) while(%e.6), condition=%c, body=%ingest
  %e.7 = bf16[32,8]{1,0:T(8,128)(2,1)} get-tuple-element(%while.1), index=0
  %e.8 = (bf16[32,8]{1,0:T(8,128)(2,1)}, bf16[100,8]{1,0:T(8,128)(2,1)}, \
bf16[16,8]{1,0:T(8,128)(2,1)}, s32[4]{0:T(128)}, bf16[2,8]{1,0:T(8,128)(2,1)S(1)}, \
/*index=5*/pred[]{:T(512)}) tuple(%e.7, %e.1, %e.2, %e.3, %e.4, /*index=5*/%e.5)
  ROOT %while.2 = () while(%e.8), condition=%c, body=%decode
}
"""
# In bytes; rows of the gather 4·8·2, ids 4·4, weight 16·8·2, product 4·16·4, new
# entries 2·8·2.
ROWS, IDS, WEIGHT, PRODUCT, NEW = 64, 16, 256, 256, 32
WEIGHTS = (
    WEIGHT  # the slice that starts
    + ROWS  # rows of the table, not all of it
    + WEIGHT  # the branch with a product
)
OTHER = (
    IDS  # of the rows
    + ROWS  # the product: its weight is in VMEM by then
    + PRODUCT  # the exchange, whose result stays in VMEM
    + ROWS  # the branch
)
WRITTEN = ROWS + PRODUCT + PRODUCT + NEW  # gather, product, branch, append in place
FLOPS = 2 * (2 * 4 * 16 * 8)
