/* What base's own files share about processors: which cores a team may be bound to. Not for other parts. */
#ifndef GY_BASE_CPU_INT_H
#define GY_BASE_CPU_INT_H

/* One allowed logical CPU per allowed physical core, ascending. Returns how many there are, writes at most cap. */
int gy_cpu_list_physical(int *cpu_out, int cap);
/* Logical CPUs that this thread may run on, >= 1. */
int gy_cpu_count_allowed(void);

#endif
